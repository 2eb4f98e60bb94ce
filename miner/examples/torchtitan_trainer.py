#!/usr/bin/env python3
"""Trains for a miner with TorchTitan, on the GPUs of one machine or of several.

    [train]
    engine = "command"

    [train.command]
    program = ["torchrun", "--standalone", "--nproc-per-node", "8", "torchtitan_trainer.py"]

Rank 0 talks to the miner and shares each request with the other ranks. The options are TorchTitan's own. Needs
torchtitan 0.3.0 and, beside this file, torch_trainer.py; docs/trainers.md says more.
"""

import ctypes
import os
import signal

# torchrun starts each rank in a session of its own, so the miner, which kills the process group of the program, misses
# it. Linux ends it with torchrun. Set here, since the imports below take a while.
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

import bisect
import select
import struct
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan

if not torch.cuda.is_available():
    # Before any other part of TorchTitan reads them: without a GPU it assumes CUDA.
    titan.device_type, titan.device_module = "cpu", torch.cpu

import tyro
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torchtitan.components.checkpointer.utils import canonical_fqn
from torchtitan.components.loss import IGNORE_INDEX, ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.optimizer.utils import init_optim_state
from torchtitan.config import TORCH_DTYPE_MAP, CommConfig, CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.manager import ConfigManager, custom_registry
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_distributed
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.distributed.spmd_types import annotate_input_spmd_types
from torchtitan.models.common import Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.common.rope import CosSinRoPE
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

from torch_trainer import Miner

# Between two signs of rank 0 to ranks that wait for the miner's next request. Shorter than any timeout of theirs.
IDLE_SECONDS = 10
# TorchTitan's for Llama 3.
LOSS_CHUNKS = 8


@dataclass(kw_only=True)
class Options:
    """TorchTitan's options. The miner dictates sequence length, batch, learning rate and clipping."""

    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    # A `local_batch_size` of 0 is the recipe's micro-batch, or with a pipeline this rank's part of the batch.
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(local_batch_size=0))
    activation_checkpoint: ActivationCheckpointingConfig = None
    compile: CompileConfig = field(default_factory=CompileConfig)
    # TorchTitan would write traces of communication into the working directory.
    comm: CommConfig = field(default_factory=lambda: CommConfig(trace_buf_size=0))
    float8: Literal["rowwise", "rowwise_with_gw_hp"] | None = None


class Trainer:
    """This rank's part of model and optimiser. TorchTitan's `Trainer` is not used: its step clips, steps and schedules
    in one, by its own data, while here the miner decides between gradient and step."""

    def __init__(self, opened, options, device):
        self.model, self.recipe, self.options, self.device = opened["model"], opened["recipe"], options, device
        if self.recipe.get("optimiser", "adamw") != "adamw":
            raise ValueError("this program knows AdamW only: set `optimiser = \"adamw\"` under [train]")
        if options.parallelism.spmd_backend != "spmd_types":
            raise ValueError("this program knows TorchTitan's default for parallelism.spmd_backend only")
        if self.model["vocab"] % options.parallelism.tensor_parallel_degree != 0:
            raise ValueError(f"parallelism.tensor_parallel_degree has to divide the vocabulary, {self.model['vocab']}")
        titan_distributed.set_spmd_backend(options.parallelism.spmd_backend)
        self.dims = ParallelDims.from_config(options.parallelism, dist.get_world_size())
        self.context = titan_distributed.get_spmd_context(parallel_dims=self.dims)
        batch = self.dims.get_optional_mesh("batch")
        self.data_ranks, self.data_rank = (batch.size(), batch.get_local_rank()) if batch else (1, 0)
        tensor_parallel = self.dims.get_optional_mesh("tp")
        self.counts_loss = tensor_parallel is None or tensor_parallel.get_local_rank() == 0
        self.choose_local_batch()
        self.build()
        self.build_optimiser()
        self.map_tensors(opened["tensors"])

    def choose_local_batch(self):
        training, part = self.options.training, -(-self.recipe["batch"] // self.data_ranks)
        if training.local_batch_size == 0:
            training.local_batch_size = part if self.dims.pp_enabled else min(part, self.recipe["micro_batch"])
            if self.dims.pp_enabled:
                together = self.options.parallelism.pipeline_parallel_microbatch_size
                training.local_batch_size = -(-part // together) * together

    def build(self):
        options, model = self.options, self.model
        config = self.config()
        if options.float8:
            from torchtitan.components.quantization import Float8LinearConverter

            converter = Float8LinearConverter.Config(
                recipe_name=options.float8, filter_fqns=["lm_head"], emulate=titan.device_type == "cpu",
                model_compile_enabled=options.compile.enable and "model" in options.compile.components,
            )
            config = converter.build().convert(config)
        config.update_from_config(config=options)
        self.names = Llama3StateDictAdapter(config, None).from_hf_map
        with torch.device("meta"), titan.set_default_dtype(TORCH_DTYPE_MAP[options.training.dtype]):
            built = config.build()
        loss = CrossEntropyLoss.Config(global_vocab_size=model["vocab"])
        self.chunked = model["seq_len"] % LOSS_CHUNKS == 0
        if self.chunked:
            loss = ChunkedLossWrapper.Config(num_chunks=LOSS_CHUNKS, loss_fn=loss)
        self.loss = loss.build(compile_config=options.compile)
        settings = dict(
            parallel_dims=self.dims, training=options.training, parallelism=options.parallelism,
            compile_config=options.compile, ac_config=options.activation_checkpoint, dump_folder="",
        )
        if self.dims.pp_enabled:
            self.schedule, self.parts, self.has_first, self.has_last = pipeline_llm(
                built, **settings, device=self.device, model_config=config, parallelize_fn=parallelize_llama,
                loss_fn=self.loss,
            )
        else:
            self.parts, self.has_first, self.has_last = [parallelize_llama(built, **settings)], True, True
        for part in self.parts:
            part.to_empty(device="cpu" if options.training.enable_cpu_offload else titan.device_type)
            with torch.no_grad():
                part.init_weights(buffer_device=self.device)
            part.train()
            if titan.device_type == "cpu":
                # Gloo knows no sum that is scaled, and TorchTitan's scale is one.
                for module in part.modules():
                    if isinstance(module, FSDPModule):
                        module.set_force_sum_reduction_for_comms(True)
        if self.chunked and self.has_last:
            last = next(part for part in self.parts if part.lm_head is not None)
            self.loss.set_lm_head(last.lm_head)
            last._skip_lm_head = True

    def config(self):
        """Each of its tensors is one of the miner's: projections are separate, and positions turn halves of a head
        against each other. Attention crosses documents, so it needs no mask."""
        model, skip = self.model, {"weight": skip_param_init}
        width, heads = model["d_model"], model["heads"]
        norm = lambda: RMSNorm.Config(normalized_shape=width, eps=model["norm_epsilon"], param_init=skip)
        layer = lambda: Llama3TransformerBlock.Config(
            attention_norm=norm(), ffn_norm=norm(),
            attention=make_gqa_config(
                dim=width, n_heads=heads, n_kv_heads=model["kv_heads"], fuse_qkv=False,
                wqkv_param_init=skip, wo_param_init=skip, inner_attention=ScaledDotProductAttention.Config(),
                rope=CosSinRoPE.Config(dim=width // heads, max_seq_len=model["seq_len"], theta=model["rope_theta"]),
            ),
            feed_forward=make_ffn_config(dim=width, hidden_dim=model["d_ff"], w1_param_init=skip, w2w3_param_init=skip),
        )
        return Llama3Model.Config(
            dim=width, vocab_size=model["vocab"], norm=norm(), layers=[layer() for _ in range(model["layers"])],
            # TorchTitan ties no weights across a pipeline: `tie` does.
            enable_weight_tying=not self.dims.pp_enabled,
            tok_embeddings=Embedding.Config(num_embeddings=model["vocab"], embedding_dim=width, param_init=skip),
            lm_head=Linear.Config(in_features=width, out_features=model["vocab"], param_init=skip),
        )

    def build_optimiser(self):
        group = lambda pattern, decay: ParamGroupConfig(
            pattern=pattern, optimizer_name="AdamW",
            optimizer_kwargs=dict(
                lr=0.0, betas=tuple(self.recipe["betas"]), eps=self.recipe["epsilon"], weight_decay=decay
            ),
        )
        groups = [group(r"norm\.weight$", 0.0), group(r".*", self.recipe["weight_decay"])]
        self.optimisers = OptimizersContainer.Config(param_groups=groups).build(model_parts=self.parts)
        for optimiser in self.optimisers:
            init_optim_state(optimiser)

    def map_tensors(self, tensors):
        """Where the vectors' tensors are on this rank: the place of each in its vector, and its shards."""
        parameters = {canonical_fqn(name): value for part in self.parts for name, value in part.named_parameters()}
        self.embedding, self.head = parameters.get("tok_embeddings.weight"), parameters.get("lm_head.weight")
        states = {parameter: state for optimiser in self.optimisers for parameter, state in optimiser.state.items()}
        self.states, self.parameters = list(states.values()), list(parameters.values())
        self.vectors = {"weights": ([], []), "moments": ([], [])}
        lengths, owned = {"weights": 0, "moments": 0}, 0
        for tensor in tensors:
            mine = self.named(parameters, tensor["name"])
            rows, width = tensor["shape"]
            shards = {"weights": [[]], "moments": [[], []]}
            for parameter, owns in mine:
                state = states[parameter]
                shards["weights"][0].append(Shard(parameter, parameter, width, owns))
                for copies, value in zip(shards["moments"], [state["exp_avg"], state["exp_avg_sq"]]):
                    copies.append(Shard(value, parameter, width, owns))
            owned += sum(shard.values.numel() for shard in shards["weights"][0] if shard.owns)
            for part, (starts, entries) in self.vectors.items():
                for copies in shards[part]:
                    starts.append(lengths[part])
                    entries.append((rows, width, copies))
                    lengths[part] += rows * width
        owned = torch.tensor(owned, device=self.device)
        dist.all_reduce(owned)
        if owned.item() != lengths["weights"]:
            all = lengths["weights"]
            raise RuntimeError(f"the ranks hold {owned.item()} of {all} weights: is this TorchTitan 0.3.0?")

    def named(self, parameters, name):
        """This rank's copies of a tensor, and whether its shards of it are the ones that are sent."""
        layered = name.split(".")
        layer = next((part for part in layered if part.isdigit()), "")
        ours = self.names[".".join("{}" if part == layer else part for part in layered)].format(layer)
        if ours in parameters:
            yield parameters[ours], True
        if ours == "tok_embeddings.weight" and self.head is not None and self.head is not self.embedding:
            yield self.head, False

    def pieces(self, part, first, count, values):
        """Pairs of a piece of this rank's shards and the same piece of `values`, which start at `first`."""
        starts, entries = self.vectors[part]
        at = bisect.bisect_right(starts, first) - 1
        while at < len(starts) and starts[at] < first + count:
            rows, width, copies = entries[at]
            begin, end = max(first - starts[at], 0), min(first + count - starts[at], rows * width)
            for top, bottom, left, right in rectangles(begin, end, width):
                place = starts[at] + top * width + left - first
                piece = values[place : place + (bottom - top) * (right - left)].view(bottom - top, right - left)
                for shard in copies:
                    up, down = max(top, shard.top), min(bottom, shard.top + shard.values.shape[0])
                    west, east = max(left, shard.left), min(right, shard.left + shard.values.shape[1])
                    if up < down and west < east:
                        own = shard.values[up - shard.top : down - shard.top, west - shard.left : east - shard.left]
                        yield own, piece[up - top : down - top, west - left : east - left], shard.owns
            at += 1

    def put(self, body, part, first, count):
        for own, piece, _ in self.pieces(part, first, count, body.view(torch.float32)):
            own.copy_(piece)

    def get(self, part, first, count):
        """The values on rank 0. Each is sent by one rank, and added to zeros as an integer: so all bits are kept."""
        values = torch.zeros(count, device=self.device)
        for own, piece, owns in self.pieces(part, first, count, values):
            if owns:
                piece.copy_(own)
        dist.reduce(values.view(torch.int32), dst=0)
        values = values.cpu()
        return ctypes.string_at(values.data_ptr(), 4 * count)

    def gradients(self, body, sequences, tokens, progress):
        self.optimisers.zero_grad()
        local = self.options.training.local_batch_size
        turns = -(-sequences // (local * self.data_ranks))
        rows = body.view(torch.int32).long().view(sequences, tokens)
        # Rows that fill the last turn up: none of their tokens count.
        filling = turns * local * self.data_ranks - sequences
        inputs = torch.cat([rows[:, :-1], rows.new_zeros(filling, tokens - 1)])
        labels = torch.cat([rows[:, 1:], rows.new_full((filling, tokens - 1), IGNORE_INDEX)])
        counted = torch.tensor(sequences * (tokens - 1), device=self.device)
        total = 0.0
        for turn in range(turns):
            first = (turn * self.data_ranks + self.data_rank) * local
            loss = self.backward(inputs[first : first + local], labels[first : first + local], counted)
            if self.has_last and self.counts_loss:
                total += loss.item()
            progress(min(sequences, (turn + 1) * self.data_ranks * local))
        if self.dims.pp_enabled:
            self.tie()
        total = torch.tensor(total, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return struct.pack("<dd", total.item(), self.norm())

    def backward(self, inputs, labels, counted):
        """As TorchTitan's `forward_backward_step`. FSDP adds the gradients of all data-parallel ranks, undivided."""
        if not self.dims.pp_enabled:
            inputs, labels, _ = annotate_input_spmd_types(self.dims, inputs, labels, {})
            with self.context():
                loss, _ = self.loss(self.parts[0](inputs), labels, counted)
                loss.backward()
            return loss.detach()
        together = self.options.parallelism.pipeline_parallel_microbatch_size
        pairs = zip(inputs.split(together), labels.split(together))
        pairs = [annotate_input_spmd_types(self.dims, *pair, {})[:2] for pair in pairs]
        losses = []
        with self.context():
            self.schedule.step(
                arg_mbs=[(inputs,) for inputs, _ in pairs] if self.has_first else None,
                kwarg_mbs=[{} for _ in pairs],
                target_mbs=[labels for _, labels in pairs] if self.has_last else None,
                losses=losses if self.has_last else None,
                loss_kwargs={"global_valid_tokens": counted},
                return_outputs=False,
            )
        return torch.stack(losses).sum() if self.has_last else None

    def tie(self):
        """Adds the gradients of the embedding and of the output, which are the first and the last stage's. Both stages
        then take the same steps, so that their weights stay equal."""
        if self.embedding is not None and self.head is not None:
            both = self.embedding.grad + self.head.grad
            self.embedding.grad.copy_(both)
            self.head.grad.copy_(both)
        elif self.embedding is not None or self.head is not None:
            stages = dist.get_process_group_ranks(self.dims.get_mesh("pp").get_group())
            other = stages[-1] if self.embedding is not None else stages[0]
            grad = (self.embedding if self.embedding is not None else self.head).grad.to_local()
            received = torch.empty_like(grad)
            exchange = [dist.P2POp(dist.isend, grad, other), dist.P2POp(dist.irecv, received, other)]
            for request in dist.batch_isend_irecv(exchange):
                request.wait()
            grad.add_(received)

    def norm(self):
        grads = [
            parameter.grad for parameter in self.parameters
            if not (self.dims.pp_enabled and parameter is self.head)
        ]
        norm = torch.nn.utils.get_total_norm(grads)
        norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).to(self.device)
        if self.dims.pp_enabled:
            square = norm**2
            dist.all_reduce(square, group=self.dims.get_mesh("pp").get_group())
            norm = square.sqrt()
        return norm.item()

    def step(self, step, body):
        rate, scale = struct.unpack("<dd", bytes(body.cpu()))
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
        for parameter in self.parameters:
            parameter.grad.mul_(scale)
        for state in self.states:
            # `step` in the state counts the steps before this one.
            state["step"].fill_(step - 1)
        self.optimisers.step()


class Shard:
    """This rank's rectangle of a tensor."""

    def __init__(self, value, parameter, width, owns):
        local, offset = value.detach(), (0,) * parameter.dim()
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            local = local.to_local()
            _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            # Of equal shards, the first is sent.
            owns = owns and all(at == 0 for at, kind in zip(mesh.get_coordinate(), placements) if kind.is_replicate())
        if parameter.dim() == 1:
            local, offset = local.view(1, -1), (0, *offset)
        self.values, self.owns, (self.top, self.left) = local, owns, offset


def rectangles(first, last, width):
    """The values `first` to `last` of a matrix, row by row, as at most three rectangles: top, bottom, left, right."""
    while first < last:
        row, column = divmod(first, width)
        if column != 0 or last - first < width:
            until = min(last, (row + 1) * width)
            yield row, row + 1, column, column + until - first
        else:
            until = first + (last - first) // width * width
            yield row, row + (until - first) // width, 0, width
        first = until


def store():
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def watch(miner):
    """Ends rank 0, and torchrun with it all others, when the miner is gone, or when a rank has failed."""
    poll, failures = select.poll(), store()
    poll.register(miner.socket, select.POLLRDHUP)
    while not poll.poll(200):
        if failures.check(["failure"]):
            miner.send("failed", why=failures.get("failure").decode()[:1000])
            break
    os._exit(1)


def requests(miner, device):
    """The miner's requests, on every rank. The body is a tensor of bytes on the device."""
    # Without a GPU that spins while a miner waits for its next window.
    waiting = dist.new_group(backend="gloo", timeout=timedelta(seconds=6 * IDLE_SECONDS))
    while True:
        request, body = None, b""
        if miner and select.select([miner.socket], [], [], IDLE_SECONDS)[0]:
            kind, fields, body = miner.receive()
            request = (kind, fields, len(body))
        shared = [request]
        dist.broadcast_object_list(shared, src=0, group=waiting)
        if shared[0] is not None:
            kind, fields, length = shared[0]
            values = torch.empty(length, dtype=torch.uint8, device=device)
            if length:
                if miner:
                    values.copy_(torch.frombuffer(body, dtype=torch.uint8))
                dist.broadcast(values, src=0)
            yield kind, fields, values


def serve(miner, options, device):
    answer = lambda kind, body=b"", **fields: miner and miner.send(kind, body, **fields)
    trainer = None
    for kind, fields, body in requests(miner, device):
        if kind == "open":
            trainer = Trainer(fields, options, device)
            answer("ready")
        elif kind == "put":
            with torch.no_grad():
                trainer.put(body, **fields)
            answer("taken")
        elif kind == "get":
            with torch.no_grad():
                answer("values", trainer.get(**fields))
        elif kind == "gradients":
            progress = lambda done: answer("progress", sequences=done)
            answer("gradients", trainer.gradients(body, progress=progress, **fields))
        elif kind == "step":
            trainer.step(fields["step"], body)
            answer("stepped")
        else:
            return


def main():
    ConfigManager()
    options = tyro.cli(Options, description=__doc__, registry=custom_registry)
    device = titan.get_local_device()
    titan.device_module.set_device(device)
    ranks, rank = titan_distributed.init_distributed(options.comm), dist.get_rank()
    miner = None
    if rank == 0:
        # Not before all ranks are there: until then the miner waits by `start_seconds` alone.
        miner = Miner()
        threading.Thread(target=watch, args=[miner], daemon=True).start()
        miner.send("hello", protocol=1, name=f"TorchTitan on {ranks} ranks, {titan.device_type}")
    try:
        serve(miner, options, device)
    except Exception as error:
        # The first to fail knows the reason; the others lose their connection to it. Rank 0 has the time to report it.
        store().compare_set("failure", "", f"rank {rank}: {type(error).__name__}: {error}")
        time.sleep(2)
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
