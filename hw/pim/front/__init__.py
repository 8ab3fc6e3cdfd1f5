"""The front: checks a descriptor and plans its work, by a microprogram on one calculator."""
