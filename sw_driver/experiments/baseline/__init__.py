"""Adam on the host's CPU: the row that the paper puts beside the AXDIMM (section 6.2, Table 5)."""
