"""Makes the model beside it, and what `transformers` computes with it: python make.py (needs torch and transformers)."""

import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
torch.manual_seed(7)
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=24, rms_norm_eps=1e-5, tie_word_embeddings=True,
    initializer_range=0.4, bos_token_id=None, eos_token_id=0, rope_theta=500.0,
)
model = LlamaForCausalLM(config)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.uniform_(0.5, 1.5)
model.bfloat16().save_pretrained(HERE)
(HERE / "generation_config.json").unlink()

model = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32, attn_implementation="eager").eval()
tokens = [(7 * i * i + 3 * i + 1) % 32 for i in range(24)]
with torch.no_grad():
    logits = model(torch.tensor([tokens])).logits[0]
text = json.dumps({"tokens": tokens, "logits": [[round(x, 6) for x in row] for row in logits.tolist()]})
(HERE / "logits.json").write_text(text.replace("], [", "],\n[") + "\n")
