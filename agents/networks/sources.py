"""Networks as torch or ONNX have them: loaded from a file, or built from a configuration with random weights.

Runs in the confined process of `reader_process.py`; imports torch, transformers, torchvision and onnx when
called. Nothing is downloaded.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.errors import first_line
from agents.networks.network_name import NetworkName, NetworkRefusedError, why_value_shaped
from agents.networks.outputs import narrowest

#: Of the weights of architectures, and of what a network is tried with.
_SEED = 0
#: Channels of an image, and its side where an architecture does not say.
_CHANNELS, _SIDE = 3, 224


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedNetwork:
    """A network that can be imported by TVM."""

    network: NetworkName
    #: `torch.export.ExportedProgram` with fixed shapes; None where it came as ONNX.
    program: Any = None
    #: `onnx.ModelProto`; None where it came from torch.
    onnx_model: Any = None
    #: (name, shape, dtype) of each input, in order.
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    #: Values that were exported with it, by place: token ids stay within their vocabulary. None: at random.
    examples: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        for name, shape, _ in self.inputs:
            if 0 in shape:
                raise NetworkRefusedError(
                    f"network {self.network.text}: input {name} is empty (shape {list(shape)}), so there is "
                    "nothing to compute; export it with sizes from 1"
                )

    @property
    def reference(self) -> str:
        """Who has the right output."""
        return "ONNX Runtime" if self.program is None else "torch"

    def precision(self) -> str:
        """The narrowest floating type that it computes in: inputs may have a wider one."""
        return narrowest(_onnx_dtypes(self.onnx_model) if self.program is None else _dtypes(self.program))

    def operators(self) -> list[str]:
        """Its operators, the rarest first."""
        if self.program is None:
            names = [node.op_type for node in self.onnx_model.graph.node]
        else:
            names = [str(node.target) for node in self.program.graph.nodes if node.op == "call_function"]
        return [name for name, _ in reversed(Counter(names).most_common())]

    def random_inputs(self) -> list[Any]:
        """NumPy arrays to run it on: normal numbers, and the exported values where they are whole."""
        import ml_dtypes  # noqa: F401  # names bfloat16 to NumPy; a need of TVM's
        import numpy as np

        draws = np.random.default_rng(_SEED)
        arrays = []
        for place, (_, shape, dtype) in enumerate(self.inputs):
            if dtype.startswith(("float", "bfloat")):
                arrays.append(draws.standard_normal(shape).astype(dtype))
            elif self.examples is not None:
                arrays.append(self.examples[place])
            else:
                arrays.append(draws.integers(0, 2, shape).astype(dtype))
        return arrays


def load(network: NetworkName) -> LoadedNetwork:
    """Load or build a network.

    Raises:
        NetworkRefusedError: It cannot be; one line says why, and what would help.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and its neighbours warn of their own future
        match network.source:
            case "pt2":
                return _from_archive(network)
            case "onnx":
                return _from_onnx(network)
            case "transformers":
                return _traced(network, *_from_transformers(network))
            case "torchvision":
                return _traced(network, *_from_torchvision(network))
    raise NetworkRefusedError(f"network {network.text}: is a list of operators, and no graph")


def _package(network: NetworkName, name: str) -> Any:
    """Import a package that a network needs.

    Raises:
        NetworkRefusedError: It is missing, or does not start, as a torchvision for another torch.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network.text}: {name} cannot be imported here ({first_line(error)}); "
            "pip install 'tensor-fleet[networks]'" + (f" {name}" if name == "torchvision" else "")
        ) from None


def _from_archive(network: NetworkName) -> LoadedNetwork:
    _package(network, "torch")
    from agents.networks.torch_program import load_program

    network.check_file()
    return _of_program(network, *load_program(network))


def _from_onnx(network: NetworkName) -> LoadedNetwork:
    onnx = _package(network, "onnx")
    network.check_file()
    try:
        model = onnx.load(str(network.path))
        onnx.checker.check_model(model)
    except Exception as error:
        raise NetworkRefusedError(f"network {network.text}: is no ONNX model: {first_line(error)}") from None
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs: list[tuple[str, tuple[Any, ...], str]] = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor, kind = value.type.tensor_type, value.type.WhichOneof("value") or "value"
        if kind != "tensor_type":
            raise NetworkRefusedError(
                f"network {network.text}: input {value.name} is no tensor but a "
                f"{kind.removesuffix('_type')}; "
                "export the network with tensors as its inputs"
            )
        shape: list[Any] = [
            extent.dim_value if extent.HasField("dim_value") else extent.dim_param or "?"
            for extent in tensor.shape.dim
        ]
        if not all(isinstance(extent, int) for extent in shape):
            raise NetworkRefusedError(
                f"network {network.text}: input {value.name} has dynamic shape {shape}; fix it with "
                "python -m onnxruntime.tools.make_dynamic_shape_fixed"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        inputs.append((value.name, tuple(shape), str(dtype)))
    return LoadedNetwork(network=network, onnx_model=model, inputs=tuple(inputs))


def _from_transformers(network: NetworkName) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """A model of random weights with its inputs."""
    import torch

    transformers = _package(network, "transformers")
    config, side = _config(network, transformers)
    torch.manual_seed(_SEED)
    try:
        model = _kind_of(config, transformers).from_config(config).eval()
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network.text}: transformers cannot build it: {first_line(error)}"
        ) from None
    name = model.main_input_name
    if name == "pixel_values":
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        value = torch.randn(network.batch, *frames, getattr(config, "num_channels", _CHANNELS), side, side)
    elif name == "input_ids" and not getattr(config, "is_encoder_decoder", False):
        value = torch.randint(0, config.vocab_size, (network.batch, network.tokens))
    else:
        raise NetworkRefusedError(
            f"network {network.text}: takes {name}, and only images, videos and texts are made here; export "
            "it with torch.export.save, and name the .pt2 file"
        )
    return model, (), {name: value}


def _kind_of(config: Any, transformers: Any) -> Any:
    """The class that builds a model with the head of its usual task, where that task is one of images."""
    if not hasattr(config, "vocab_size"):
        for name in ("ImageClassification", "DepthEstimation"):
            kind = getattr(transformers, f"AutoModelFor{name}")
            if type(config) in kind._model_mapping:
                return kind
    return transformers.AutoModel


def _config(network: NetworkName, transformers: Any) -> tuple[Any, int]:
    """The configuration of an architecture, and the side of an image: some configurations have none."""
    configurations = transformers.CONFIG_MAPPING
    try:
        default = transformers.AutoConfig.for_model(network.name)
    except Exception:
        raise NetworkRefusedError(
            f"network {network.text}: transformers {transformers.__version__} has no architecture "
            f"{network.name!r}{_nearest(network.name, list(configurations.keys()))}"
        ) from None
    options = dict(network.options)
    side = options.get("image_size") or getattr(default, "image_size", None) or _SIDE
    if not hasattr(default, "image_size") and not hasattr(default, "vocab_size"):
        options.pop("image_size", None)
    for key in options:
        if not hasattr(default, key):
            raise NetworkRefusedError(
                f"network {network.text}: the configuration of {network.name} has no {key!r}"
                f"{_nearest(key, list(default.to_dict()))}"
            )
    if hasattr(default, "use_cache"):
        options.setdefault("use_cache", False)
    try:
        config = transformers.AutoConfig.for_model(network.name, **options)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network.text}: its configuration is refused: {first_line(error)}"
        ) from None
    # Where an architecture has several heads, `from_config` looks for its name in here.
    config.architectures = config.architectures or []
    # Some configurations have height and width.
    return config, int(side[0] if isinstance(side, list | tuple) else side)


def _from_torchvision(network: NetworkName) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """A model of random weights with its inputs."""
    import torch

    models = _package(network, "torchvision").models
    options = dict(network.options)
    side = options.pop("image_size", _SIDE)
    if network.name not in models.list_models():
        raise NetworkRefusedError(
            f"network {network.text}: torchvision has no architecture {network.name!r}"
            f"{_nearest(network.name, models.list_models())}"
        )
    torch.manual_seed(_SEED)
    try:
        model = models.get_model(network.name, weights=None, **options).eval()
        value = torch.randn(network.batch, _CHANNELS, side, side)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network.text}: torchvision cannot build it: {first_line(error)}"
        ) from None
    return model, (value,), {}


def _traced(
    network: NetworkName, model: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> LoadedNetwork:
    """Export a model that was built here."""
    import torch

    def dtype(value: Any) -> Any:
        return value.to(getattr(torch, network.dtype)) if value.is_floating_point() else value

    try:
        _settle_norms(model, args, named)
        model = model.to(getattr(torch, network.dtype))
        args, named = tuple(map(dtype, args)), {key: dtype(value) for key, value in named.items()}
        with torch.no_grad():
            program = torch.export.export(model, args, named)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network.text}: torch.export cannot trace it: {first_line(error)}"
        ) from None
    return _of_program(network, program, torch.utils._pytree.tree_leaves((args, named)))


def _settle_norms(model: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Have batch normalisations give numbers around 1: else a deep network of random weights gives 0.

    All channels of a layer get one mean and one variance. A channel of a small image holds few numbers, or
    one; by its own variance its roundings would be the output.
    """
    import torch

    def settle(norm: Any, inputs: tuple[Any, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0])
        if norm.running_var is not None and variance > 0:
            norm.running_mean.fill_(mean)
            norm.running_var.fill_(variance)
            if norm.weight is not None:
                # What the norm adds to a small variance would make its numbers small.
                norm.weight.fill_(torch.sqrt(1 + norm.eps / variance))

    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    if not any(isinstance(module, kinds) for module in model.modules()):
        return
    # A run leaves tensors of its type in some models, and they stay when the weights get another.
    tried = copy.deepcopy(model)
    for module in tried.modules():
        if isinstance(module, kinds):
            module.register_forward_pre_hook(settle)
    with torch.no_grad():
        tried(*args, **named)
    model.load_state_dict(tried.state_dict())


def _of_program(network: NetworkName, program: Any, exported: Sequence[Any]) -> LoadedNetwork:
    """Describe an exported program, with the values that it was exported with."""
    import torch

    from agents.networks.torch_program import example_arrays

    if program.range_constraints:
        raise NetworkRefusedError(f"network {network.text}: {_why_dynamic(program)}")
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = []
    for name in names:
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            raise NetworkRefusedError(
                f"network {network.text}: input {name} is no tensor; export it with tensors only"
            )
        inputs.append((str(name), tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")))
    return LoadedNetwork(
        network=network,
        program=program,
        inputs=tuple(inputs),
        examples=example_arrays(exported, inputs),
    )


def _why_dynamic(program: Any) -> str:
    """What makes a shape of a program dynamic: an input, or an operator whose output's size is a value."""
    import torch

    for node in program.graph.nodes:
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
        if any(isinstance(extent, torch.SymInt) for shape in shapes for extent in shape):
            if node.op == "placeholder":
                break
            return why_value_shaped(str(node.target))
    return "has dynamic shapes; export it with fixed ones (no dynamic_shapes)"


def _dtypes(program: Any) -> Iterator[str]:
    """Types of all tensors of a torch program."""
    import torch

    for node in program.graph.nodes:
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                yield str(value.dtype).removeprefix("torch.")


def _onnx_dtypes(model: Any) -> Iterator[str]:
    """Types of all tensors of an ONNX model, as far as its shapes can be inferred."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = {value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}
    for kind in kinds | {weight.data_type for weight in graph.initializer}:
        if kind:
            yield onnx.TensorProto.DataType.Name(kind).lower()


def _nearest(word: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, names, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""
