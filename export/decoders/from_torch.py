"""Decoders of `transformers`, from a folder of weights or as modules; needs torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from zotta_edge.decoder_format import IMAGE_PLACE, PROMPT_PLACE, Prompting
from zotta_edge.errors import ZottaError, quoting
from zotta_edge.files import read_text
from zotta_edge.models.decoder import Decoder, Rotary, Sizes

FAMILIES = ("llama", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text")
_MARK = "\x00prompt\x00"
_MOST_LAYERS = 1000
# From the folder alone, and without asking whether its own code may be run.
_THERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def decoder_of(
    module: nn.Module, prompting: Prompting | None = None, tokenizer: str | None = None
) -> Decoder:
    """The decoder inside a Llama, Qwen2 or Qwen2.5-VL model.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = {"hidden_size": 8, "intermediate_size": 16, "vocab_size": 11}
    >>> heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> decoder = decoder_of(LlamaForCausalLM(LlamaConfig(**tiny, **heads)))
    >>> decoder.sizes.head_dim, decoder.weights["layers.0.self_attn.k_proj.weight"].shape
    (4, (4, 8))
    """
    whole: Any = module.config
    config = getattr(whole, "text_config", whole)
    _check_family(config)
    text: Any = module.get_decoder()  # type: ignore[operator]
    weights = {name: as_array(value) for name, value in text.state_dict().items()}
    if not getattr(whole, "tie_word_embeddings", False):
        weights["lm_head.weight"] = as_array(module.lm_head.weight)  # type: ignore[arg-type,union-attr]
    prompting = prompting or Prompting(stop=_stops(module, config), pad=_pad(config, config))
    return Decoder(
        config.model_type, _sizes(config), _rotary(text.rotary_emb), weights, prompting, tokenizer
    )


def load_folder(folder: Path) -> nn.Module:
    """A model with its weights from a local folder, as `save_pretrained` writes one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    # What matters of its reports is checked below.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with quoting(f"{folder} holds no model that transformers can load"):
        config = AutoConfig.from_pretrained(folder, **_THERE)
        _check_family(getattr(config, "text_config", config))
        _check_layers(getattr(config, "text_config", config))
        seeing = hasattr(config, "vision_config")
        kind: Any = AutoModelForImageTextToText if seeing else AutoModelForCausalLM
        module, found = kind.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **_THERE
        )
    if missing := sorted(found["missing_keys"]):  # transformers makes them up
        raise ZottaError(f"{folder} lacks {missing[0]}, one of {len(missing)}: copy it again")
    return module.eval()  # type: ignore[no-any-return]


def read_prompting(folder: Path, module: nn.Module) -> tuple[Prompting, str | None]:
    """Template, stop tokens and tokenizer.json of a folder."""
    from transformers import AutoTokenizer

    config: Any = getattr(module.config, "text_config", module.config)
    stop, image = _stops(module, config), getattr(module.config, "image_token_id", None)
    file = folder / "tokenizer.json"
    if not file.exists():
        return Prompting((IMAGE_PLACE if image else "") + PROMPT_PLACE, stop), None
    with quoting(f"{folder} holds no tokenizer that transformers can load"):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **_THERE)
        template, unseeing = _templates(tokenizer, image)
    stop = _known((*stop, tokenizer.eos_token_id), config)
    prompting = Prompting(template, stop, _pad(tokenizer, config), unseeing=unseeing)
    return prompting, read_text(file)


def _templates(tokenizer: Any, image_token: int | None) -> tuple[str, str]:
    """For a question, and for one without an image where the model sees."""
    if image_token is None:
        return _template(tokenizer, _MARK), ""
    image, words = tokenizer.convert_ids_to_tokens(image_token), {"type": "text", "text": _MARK}
    seeing = _template(tokenizer, [{"type": "image"}, words], image)
    return seeing, _template(tokenizer, [words])


def _template(tokenizer: Any, content: Any, image: str = "") -> str:
    """What the chat template puts around one question, and around its image's token."""
    places = [IMAGE_PLACE, PROMPT_PLACE] if image else [PROMPT_PLACE]
    if not tokenizer.chat_template:
        return "".join(places)
    chat = [{"role": "user", "content": content}]
    text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    text = text.replace(_MARK, PROMPT_PLACE)
    text = text.replace(image, IMAGE_PLACE) if image else text
    return text if all(text.count(place) == 1 for place in places) else "".join(places)


def _check_layers(config: Any) -> None:
    """Before they are made: nothing else in the folder bounds their number."""
    count = getattr(config, "num_hidden_layers", None)
    if not (isinstance(count, int) and 0 < count <= _MOST_LAYERS):
        raise ZottaError(f"a model of {count} layers: expected 1 to {_MOST_LAYERS}")


def _check_family(config: Any) -> None:
    if config.model_type not in FAMILIES:
        raise ZottaError(
            f"cannot export a {config.model_type} decoder from torch: {', '.join(FAMILIES)} are "
            "known; export it to .onnx with optimum and give that file"
        )
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ZottaError(f"cannot export a decoder with {config.hidden_act}: only silu is known")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise ZottaError("cannot export a decoder with sliding attention: turn it off")


def _sizes(config: Any) -> Sizes:
    return Sizes(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        context=config.max_position_embeddings,
        epsilon=config.rms_norm_eps,
    )


def _rotary(module: Any) -> Rotary:
    sections = getattr(module, "mrope_section", ())
    axes = tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    return Rotary(as_array(module.inv_freq), float(module.attention_scaling), axes)


def _stops(module: Any, config: Any) -> tuple[int, ...]:
    generation = getattr(module, "generation_config", None)
    stop = getattr(generation, "eos_token_id", None)
    stop = config.eos_token_id if stop is None else stop
    return _known(stop if isinstance(stop, list) else [stop], config)


def _pad(source: Any, config: Any) -> int:
    return next(iter(_known([source.pad_token_id], config)), 0)


def _known(tokens: Iterable[int | None], config: Any) -> tuple[int, ...]:
    """Those that the model has, in order."""
    known = {each for each in tokens if each is not None and 0 <= each < config.vocab_size}
    return tuple(sorted(known))


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.detach().to(torch.float32).cpu().numpy()
