"""A small vision-language model: a Vision Transformer's patches before a Qwen2 decoder's words.

The decoder is `transformers`' Qwen2 (RMSNorm, rotary and grouped-query attention, SwiGLU, tied
embeddings), so what can be done to a Qwen2 can be done to it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from zotta_edge.models.picture_questions import PLACES, SIDE
from zotta_edge.models.vit import Block, PatchEmbedding, ViTShape


@dataclass(frozen=True)
class VLMShape:
    """The sizes; the defaults are the embedded model's."""

    words: int  # of the tokenizer
    tower: ViTShape = ViTShape(64, depth=3, heads=4, image=SIDE, patch=8, channels=1)
    width: int = 96
    depth: int = 4
    heads: int = 6
    groups: int = 2  # heads of keys and values
    hidden: int = 256  # of the SwiGLU
    context: int = 96

    def decoder(self) -> Qwen2Config:
        return Qwen2Config(
            vocab_size=self.words,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            max_position_embeddings=self.context,
            tie_word_embeddings=True,
            initializer_range=self.width**-0.5,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )


class VisionLanguageModel(nn.Module):
    """Pictures [batch, 1, 16, 64] and tokens [batch, n] -> logits [batch, n, vocabulary]."""

    def __init__(self, shape: VLMShape) -> None:
        super().__init__()
        self.tower = Tower(shape.tower, shape.width)
        self.decoder = Qwen2ForCausalLM(shape.decoder())

    def forward(self, pictures: Tensor, tokens: Tensor) -> Tensor:
        seen = self.tower(pictures)
        words = self.decoder.get_input_embeddings()(tokens)
        logits: Tensor = self.decoder(inputs_embeds=torch.cat([seen, words], 1)).logits
        return logits[:, seen.shape[1] :]


class Tower(nn.Module):
    """Pictures [batch, 1, 16, 64] -> one embedding a patch, [batch, 16, width]."""

    def __init__(self, shape: ViTShape, width: int) -> None:
        super().__init__()
        patches = (SIDE // shape.patch) ** 2 * PLACES
        self.patch_embed = PatchEmbedding(shape)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, patches, shape.width))
        self.blocks = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        self.proj = nn.Linear(shape.width, width)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.blocks(self.patch_embed(pictures) + self.pos_embed)
        return self.proj(self.norm(patches))  # type: ignore[no-any-return]
