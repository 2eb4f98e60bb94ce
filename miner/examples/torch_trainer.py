#!/usr/bin/env python3
"""Trains for a miner with PyTorch: the reference program for `[train] engine = "command"`.

    [train]
    engine = "command"

    [train.command]
    program = ["python3", "torch_trainer.py", "--device", "cpu"]

docs/trainers.md specifies the frames. Needs torch.
"""

import argparse
import ctypes
import json
import os
import socket
import struct

import torch
from torch.nn import functional


class Miner:
    """The socket to the miner."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["METTLE_TRAINER_SOCKET"])

    def send(self, kind, body=b"", **fields):
        header = json.dumps({kind: fields}).encode()
        self.socket.sendall(struct.pack("<IQ", len(header), len(body)) + header)
        self.socket.sendall(body)

    def receive(self):
        header, body = struct.unpack("<IQ", self.exactly(12))
        [(kind, fields)] = json.loads(self.exactly(header)).items()
        return kind, fields, self.exactly(body)

    def exactly(self, count):
        bytes, read = bytearray(count), 0
        while read < count:
            got = self.socket.recv_into(memoryview(bytes)[read:])
            if got == 0:
                raise SystemExit("the miner is gone")
            read += got
        return bytes


class Trainer:
    def __init__(self, open, device):
        self.model, self.recipe, self.device = open["model"], open["recipe"], device
        if self.recipe.get("optimiser", "adamw") != "adamw":
            raise ValueError("this program knows AdamW only: set `optimiser = \"adamw\"` under [train]")
        shapes = {tensor["name"]: tensor["shape"] for tensor in open["tensors"]}
        self.weights = {
            name: torch.zeros(shape[1:] if shape[0] == 1 else shape, device=device).requires_grad_()
            for name, shape in shapes.items()
        }
        decays = lambda weight: self.recipe["weight_decay"] if weight.dim() > 1 else 0.0
        self.optimiser = torch.optim.AdamW(
            [{"params": [weight], "weight_decay": decays(weight)} for weight in self.weights.values()],
            betas=self.recipe["betas"], eps=self.recipe["epsilon"],
        )
        for weight in self.weights.values():
            moments = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            self.optimiser.state[weight] = {"step": torch.tensor(0.0), **moments}
        width = self.model["d_model"] // self.model["heads"]
        exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
        places = torch.arange(self.model["seq_len"], dtype=torch.float64)
        angles = torch.outer(places, self.model["rope_theta"] ** -exponents)
        angles = torch.cat([angles, angles], 1)
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)

    def vectors(self, part):
        """The flat tensors that, one after the other, are the vector of a part."""
        for weight in self.weights.values():
            state = self.optimiser.state[weight]
            of = [weight.data] if part == "weights" else [state["exp_avg"], state["exp_avg_sq"]]
            yield from (tensor.view(-1) for tensor in of)

    def slices(self, part, first, count):
        """The pieces of `count` values from `first` on, with their place among them."""
        at = 0
        for vector in self.vectors(part):
            begin, end = max(first, at), min(first + count, at + len(vector))
            if begin < end:
                yield vector[begin - at : end - at], begin - first
            at += len(vector)

    def put(self, part, first, count, body):
        values = torch.frombuffer(body, dtype=torch.float32)
        for piece, place in self.slices(part, first, count):
            piece.copy_(values[place : place + len(piece)])

    def get(self, part, first, count):
        values = torch.empty(count)
        for piece, place in self.slices(part, first, count):
            values[place : place + len(piece)] = piece
        # At once: a storage's own conversion goes byte by byte.
        return ctypes.string_at(values.data_ptr(), 4 * count)

    def gradients(self, body, sequences, tokens, progress):
        batch = torch.frombuffer(body, dtype=torch.int32).long().view(sequences, tokens).to(self.device)
        self.optimiser.zero_grad()
        total, done = 0.0, 0
        for rows in batch.split(self.recipe["micro_batch"]):
            loss = self.loss(rows) / (sequences * (tokens - 1))
            loss.backward()
            total, done = total + loss.item(), done + len(rows)
            progress(done)
        norm = torch.stack([weight.grad.norm() for weight in self.weights.values()]).norm()
        return struct.pack("<dd", total, norm.item())

    def step(self, step, body):
        rate, scale = struct.unpack("<dd", body)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        for weight in self.weights.values():
            weight.grad.mul_(scale)
            # `step` in the state counts the steps before this one.
            self.optimiser.state[weight]["step"].fill_(step - 1)
        self.optimiser.step()

    def loss(self, rows):
        """The sum over all tokens, in nats."""
        logits = self.logits(rows[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum")

    def logits(self, tokens):
        weights, model = self.weights, self.model
        heads, kv_heads = model["heads"], model["kv_heads"]
        norm = lambda x, name: functional.rms_norm(x, x.shape[-1:], weights[name + ".weight"], model["norm_epsilon"])
        x = functional.embedding(tokens, weights["model.embed_tokens.weight"])
        count, length = tokens.shape
        for layer in range(model["layers"]):
            at = f"model.layers.{layer}."
            linear = lambda x, part: functional.linear(x, weights[f"{at}{part}.weight"])
            split = lambda x, heads: x.view(count, length, heads, -1).transpose(1, 2)
            normed = norm(x, at + "input_layernorm")
            query = self.turned(split(linear(normed, "self_attn.q_proj"), heads))
            key = self.turned(split(linear(normed, "self_attn.k_proj"), kv_heads))
            value = split(linear(normed, "self_attn.v_proj"), kv_heads)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != kv_heads)
            x = x + linear(mixed.transpose(1, 2).reshape(count, length, -1), "self_attn.o_proj")
            normed = norm(x, at + "post_attention_layernorm")
            inner = functional.silu(linear(normed, "mlp.gate_proj")) * linear(normed, "mlp.up_proj")
            x = x + linear(inner, "mlp.down_proj")
        return functional.linear(norm(x, "model.norm"), weights["model.embed_tokens.weight"])

    def turned(self, x):
        """Rotary positions, halves of a head against each other."""
        first, second = x.chunk(2, -1)
        length = x.shape[-2]
        return x * self.cos[:length] + torch.cat([-second, first], -1) * self.sin[:length]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0 and so on [cpu]")
    parser.add_argument("--threads", type=int, help="threads of the CPU [PyTorch's choice]")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    miner = Miner()
    miner.send("hello", protocol=1, name=f"PyTorch {torch.__version__} on {options.device}")
    trainer = None
    while True:
        kind, fields, body = miner.receive()
        try:
            if kind == "open":
                trainer = Trainer(fields, options.device)
                miner.send("ready")
            elif kind == "put":
                with torch.no_grad():
                    trainer.put(body=body, **fields)
                miner.send("taken")
            elif kind == "get":
                with torch.no_grad():
                    miner.send("values", trainer.get(**fields))
            elif kind == "gradients":
                progress = lambda done: miner.send("progress", sequences=done)
                miner.send("gradients", trainer.gradients(body, progress=progress, **fields))
            elif kind == "step":
                trainer.step(fields["step"], body)
                miner.send("stepped")
            else:
                return
        except (RuntimeError, ValueError) as error:
            miner.send("failed", why=str(error)[:1000])


if __name__ == "__main__":
    main()
