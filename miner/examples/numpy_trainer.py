#!/usr/bin/env python3
"""Trains for a miner with numpy alone, on one core: the run's model, its gradient by hand, and AdamW.

    [train]
    engine = "command"

    [train.command]
    program = ["env", "OPENBLAS_NUM_THREADS=1", "python3", "numpy_trainer.py"]

One thread: matrices this small gain nothing from more, which wait for each other on a busy machine. A strategy of one's
own is a subclass with another `step`: docs/tutorials/strategy.md writes one. Needs numpy, and the package `mettle`, of
which it uses `mettle.trainer` only (mettle/python).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from mettle.trainer import Trainer

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
INNER = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
EMBEDDING, LAST_NORM = "model.embed_tokens.weight", "model.norm.weight"


class NumpyTrainer(Trainer):
    name = "numpy, AdamW"

    def open(self, model, recipe, tensors):
        if recipe.get("optimiser", "adamw") != "adamw":
            raise ValueError('this program has two moments for each value: set `optimiser = "adamw"` under [train]')
        self.model, self.recipe = model, recipe
        self.parts = {
            "weights": np.zeros(sum(tensor.values for tensor in tensors), np.float32),
            "moments": np.zeros(sum(tensor.values * tensor.moments for tensor in tensors), np.float32),
        }
        # Each tensor is a view into the flat vectors.
        self.weights, self.moments, at = {}, {}, 0
        for tensor in tensors:
            end = at + tensor.values
            self.weights[tensor.name] = self.parts["weights"][at:end].reshape(tensor.shape)
            self.moments[tensor.name] = self.parts["moments"][2 * at : 2 * end].reshape(2, *tensor.shape)
            at = end
        self.gradient = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        width = model["d_model"] // model["heads"]
        turns = model["rope_theta"] ** -(np.arange(0, width, 2) / width)
        angles = np.outer(np.arange(model["seq_len"]), np.concatenate([turns, turns]))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.future = np.triu(np.full((model["seq_len"],) * 2, -np.inf, np.float32), 1)

    def put(self, part, first, values):
        self.parts[part][first : first + len(values)] = values

    def get(self, part, first, count):
        return self.parts[part][first : first + count].tobytes()

    def gradients(self, rows, progress):
        rows = np.asarray(rows).astype(np.int64)
        for gradient in self.gradient.values():
            gradient.fill(0)
        tokens, loss = rows[:, 1:].size, 0.0
        for first in range(0, len(rows), self.recipe["micro_batch"]):
            part = rows[first : first + self.recipe["micro_batch"]]
            loss += self.add_gradient(part[:, :-1], part[:, 1:], tokens)
            progress(first + len(part))
        return loss, math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in self.gradient.values()))

    def step(self, step, learning_rate, scale):
        """AdamW. A strategy replaces it."""
        (fast, slow), recipe = self.recipe["betas"], self.recipe
        for weight, gradient, (mean, square) in self.parameters(scale):
            mean += (1 - fast) * (gradient - mean)
            square += (1 - slow) * (gradient * gradient - square)
            if len(weight) > 1:  # a matrix, not a norm's gain
                weight *= 1 - learning_rate * recipe["weight_decay"]
            size = np.sqrt(square / (1 - slow**step)) + recipe["epsilon"]
            weight -= learning_rate / (1 - fast**step) * mean / size

    def parameters(self, scale: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Each tensor's weights, clipped gradient and two moments. Weights and moments are changed in place: the miner
        keeps both from window to window."""
        for name, weight in self.weights.items():
            yield weight, self.gradient[name] * np.float32(scale), self.moments[name]

    # ---- the model, there and back ----------------------------------------------------------------------------------

    def add_gradient(self, inputs, targets, tokens):
        """Adds the gradient of these sequences' part of the mean loss over `tokens`; the part."""
        embedding, x = self.weights[EMBEDDING], self.weights[EMBEDDING][inputs]
        backs = []
        for layer in range(self.model["layers"]):
            for block in (self.attend, self.widen):
                y, back = block(f"model.layers.{layer}.", x)
                x = x + y
                backs.append(back)
        y, last = self.norm(LAST_NORM, x)

        logits = y @ embedding.T
        logits -= logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, targets[..., None], -1)
        np.exp(logits, out=logits)
        total = logits.sum(-1, keepdims=True)
        loss = float((np.log(total) - chosen).sum(dtype=np.float64)) / tokens

        # From here on d… is the gradient of the loss at ….
        logits *= np.float32(1 / tokens) / total
        rows = np.arange(targets.size)
        dlogits = logits.reshape(targets.size, -1)
        dlogits[rows, targets.ravel()] -= np.float32(1 / tokens)
        self.gradient[EMBEDDING] += dlogits.T @ y.reshape(targets.size, -1)
        dx = last((dlogits @ embedding).reshape(y.shape))
        for back in reversed(backs):
            dx = dx + back(dx)
        np.add.at(self.gradient[EMBEDDING], inputs, dx)
        return loss

    def linear(self, name, x):
        weight, gradient = self.weights[name + ".weight"], self.gradient[name + ".weight"]

        def back(dy):
            flat = lambda values: values.reshape(-1, values.shape[-1])
            gradient[...] += flat(dy).T @ flat(x)
            return dy @ weight

        return x @ weight.T, back

    def norm(self, name, x):
        gain, gradient = self.weights[name][0], self.gradient[name][0]
        inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.model["norm_epsilon"]))
        unit = x * inverse

        def back(dy):
            gradient[...] += (dy * unit).reshape(-1, len(gain)).sum(0)
            dunit = dy * gain
            return inverse * (dunit - unit * (dunit * unit).mean(-1, keepdims=True))

        return unit * gain, back

    def attend(self, at, x):
        """Causal attention; each head of keys and values serves as many heads of queries."""
        query, key, value, out = (at + name for name in ATTENTION)
        heads, shared, length = self.model["heads"], self.model["kv_heads"], x.shape[1]
        width = x.shape[2] // heads
        # (sequences, heads of keys, heads of queries for each, places, width)
        split = lambda y: y.reshape(*y.shape[:2], shared, -1, width).transpose(0, 2, 3, 1, 4)
        join = lambda y: y.transpose(0, 3, 1, 2, 4).reshape(*x.shape[:2], -1)
        cos, sin = self.cos[:length], self.sin[:length]
        half = lambda y: np.concatenate([-y[..., width // 2 :], y[..., : width // 2]], -1)
        turned = lambda y, sin: y * cos + half(y) * sin

        normed, norm_back = self.norm(at + "input_layernorm.weight", x)
        (q, q_back), (k, k_back), (v, v_back) = (self.linear(name, normed) for name in (query, key, value))
        q, k, v = turned(split(q), sin), turned(split(k), sin), split(v)
        scale = np.float32(width**-0.5)
        shares = q @ k.swapaxes(-1, -2) * scale + self.future[:length, :length]
        shares = np.exp(shares - shares.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        y, out_back = self.linear(out, join(shares @ v))

        def back(dy):
            dmixed = split(out_back(dy))
            dshares = dmixed @ v.swapaxes(-1, -2)
            dscores = shares * (dshares - (dshares * shares).sum(-1, keepdims=True)) * scale
            dq, dk = dscores @ k, (dscores.swapaxes(-1, -2) @ q).sum(2, keepdims=True)
            dv = (shares.swapaxes(-1, -2) @ dmixed).sum(2, keepdims=True)
            return norm_back(q_back(join(turned(dq, -sin))) + k_back(join(turned(dk, -sin))) + v_back(join(dv)))

        return y, back

    def widen(self, at, x):
        """The gated inner layer, SwiGLU."""
        gate, up, down = (at + name for name in INNER)
        normed, norm_back = self.norm(at + "post_attention_layernorm.weight", x)
        (g, g_back), (u, u_back) = self.linear(gate, normed), self.linear(up, normed)
        open_by = 1 / (1 + np.exp(-g))
        y, down_back = self.linear(down, g * open_by * u)

        def back(dy):
            dinner = down_back(dy)
            dg = dinner * u * open_by * (1 + g * (1 - open_by))
            return norm_back(g_back(dg) + u_back(dinner * g * open_by))

        return y, back


if __name__ == "__main__":
    NumpyTrainer().serve()
