"""PyTorch models of the networks, with a batch and a training step of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import networks
from .bert import bert_with_batch
from .convolutional import classifier_loss, classifier_with_batch
from .decoder import decoder_loss, decoder_with_batch
from .gan import dcgan_step, dcgan_with_batch
from .gpt import gpt_loss, gpt_with_batch
from .recurrent import lstm_with_batch, recurrent_loss, recurrent_with_batch
from .transformer_xl import transformer_xl_with_batch
from .vit import vit_with_batch
from .word2vec import word2vec_with_batch

__all__ = ["MODELS"]


def _call(model: Callable[..., Any], *batch: Any) -> Any:
    return model(*batch)


MODELS: dict[type, tuple[str, Callable[[Any], Any], Callable[..., Any]]] = {
    networks.VisionConfig: ("", classifier_with_batch, classifier_loss),
    networks.RecurrentConfig: ("", recurrent_with_batch, recurrent_loss),
    networks.GptConfig: ("gpt", gpt_with_batch, gpt_loss),
    networks.LstmConfig: ("lstm", lstm_with_batch, _call),
    networks.Word2vecConfig: ("word2vec", word2vec_with_batch, _call),
    networks.GanConfig: ("dcgan", dcgan_with_batch, dcgan_step),
    networks.BertConfig: ("bert", bert_with_batch, _call),
    networks.TransformerXlConfig: ("transformer-xl", transformer_xl_with_batch, _call),
    networks.DecoderConfig: ("decoder", decoder_with_batch, decoder_loss),
    networks.VitConfig: ("vit", vit_with_batch, classifier_loss),
}
"""Name of the model in a trace's origin ("" if a field has it), maker of model and batch, step."""
