"""Write a small Llama model with random weights and a tokenizer of characters, without network.

PYTHON_OF_THE_BACKEND tiny_model.py FOLDER
"""

from __future__ import annotations

import string
import sys

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def write(folder: str) -> None:
    """Write config.json, model.safetensors and the files of the tokenizer."""
    import torch  # noqa: PLC0415 - only the interpreter of the backend has these packages
    from tokenizers import Tokenizer, decoders, models  # noqa: PLC0415 - the same
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415 - the same

    special = ["<pad>", "<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special, *dict.fromkeys(string.printable)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    numbers = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=512, **sizes, **numbers)).save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1])
