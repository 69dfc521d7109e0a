"""The classic Vision Transformer, top to bottom in the order of the paper's equations 1-4.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, section 3.1 and appendix A.

Shapes in the comments: B images, C channels, (H, W) pixels, (P1, P2) pixels a patch,
N = HW / P1P2 patches, S = N + 1 tokens with CLS, D hidden size, h heads of d = D / h,
M the MLP's width, L blocks, K classes.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.base.errors import ConfigError, ImageError
from vitreous.config import Size, ViTConfig, as_indices, as_size
from vitreous.hybrid import ResNetStem
from vitreous.initialisers import lecun_normal_
from vitreous.positions import resize_positions

ALL = slice(None)  # every token
CLS = slice(0, 1)  # the class token, always in front


def patchify(images: Tensor, patch_size: Size) -> Tensor:
    """Cut images into patches and flatten each: x (B, C, H, W) -> x_p (B, N, C*P1*P2).

    Patches run row by row. Within a patch the order is (channel, row, column), that of a
    torch convolution kernel; another order needs another weight (Google's kernels are
    (row, column, channel)).
    """
    (p1, p2), (b, c, h, w) = patch_size, images.shape
    x = images.reshape(b, c, h // p1, p1, w // p2, p2)  # (B, C, H/P1, P1, W/P2, P2)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * p1 * p2)  # (B, N, C*P1*P2)


class PatchEmbedding(nn.Module):
    """Equation 1, x_p^i E: one linear projection shared by all flattened patches.

    The same as a convolution whose kernel and stride are the patch size, which is how most
    code writes it and why the weight has a kernel's shape (D, C, P1, P2); `as_convolution`
    is that form. The matrix product is the faster of the two.
    """

    def __init__(self, in_channels: int, patch_size: Size, hidden_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, hidden_size, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        x = patchify(images, self.patch_size)  # (B, N, C*P1*P2)
        return F.linear(x, self.projection.weight.flatten(1), self.projection.bias)  # (B, N, D)

    def as_convolution(self, images: Tensor) -> Tensor:
        """The equal form: (B, C, H, W) -> (B, D, H/P1, W/P2) -> (B, N, D)."""
        return self.projection(images).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention, equations 5-8: softmax(q k^T / sqrt(d)) v, heads merged and projected."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout_rate = config.attention_dropout_rate
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)  # rows: q, k, v; each head by head
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def project(self, x: Tensor, rows: slice | Sequence[int] = ALL) -> tuple[Tensor, Tensor, Tensor]:
        """q for the tokens in `rows`, k and v for all: (B, S, D) -> three (B, h, rows or S, d)."""
        if rows == ALL:
            q, k, v = self.qkv(x).chunk(3, dim=-1)  # (B, S, D) each
        else:
            d, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
            q = F.linear(x[:, rows], weight[:d], bias[:d])  # (B, rows, D)
            k, v = F.linear(x, weight[d:], bias[d:]).chunk(2, dim=-1)  # (B, S, D) each
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, h, S, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, rows: slice = ALL) -> Tensor:
        q, k, v = self.project(x, rows)
        dropout = self.dropout_rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)  # (B, h, rows, d)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, rows, D)

    def weights(self, x: Tensor, rows: slice | Sequence[int] = ALL) -> Tensor:
        """The attention weights themselves, in float32: (B, S, D) -> (B, h, rows, S); rows sum to 1."""
        q, k, _ = self.project(x, rows)
        scores = (q.float() / math.sqrt(q.shape[-1])) @ k.float().transpose(-2, -1)
        return scores.softmax(dim=-1)


class MLP(nn.Module):
    """Two linear layers with a GELU between: D -> M -> D."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.mlp_dim)
        self.gelu = nn.GELU(approximate="tanh" if config.gelu == "tanh" else "none")
        self.fc2 = nn.Linear(config.mlp_dim, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.gelu(self.fc1(x)))  # (B, S, M)
        return self.dropout(self.fc2(x))  # (B, S, D)


class StochasticDepth(nn.Module):
    """Leaves the whole residual branch of an image out with probability `rate`, in training.

    What is kept is divided by 1 - rate. Source: Huang et al. 2016; Steiner et al. 2022.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        kept = torch.full((x.shape[0], 1, 1), 1.0 - self.rate, dtype=x.dtype, device=x.device)
        return x * torch.bernoulli(kept) / (1.0 - self.rate)


class Block(nn.Module):
    """One pre-LN encoder block, equations 2 and 3.

    z' = MSA(LN(z)) + z;  z = MLP(LN(z')) + z'

    With `rows`, only those tokens are computed: they still read all the others.
    """

    def __init__(self, config: ViTConfig, stochastic_depth_rate: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.stochastic_depth = StochasticDepth(stochastic_depth_rate)
        self.reset_parameters()

    def forward(self, x: Tensor, rows: slice = ALL) -> Tensor:
        x = x[:, rows] + self.stochastic_depth(self.dropout(self.attention(self.norm1(x), rows)))  # (B, rows, D)
        return x + self.stochastic_depth(self.mlp(self.norm2(x)))  # (B, rows, D)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The official initialisation, matrix by matrix (vit_jax `models_vit.py`)."""
        attention, mlp = self.attention, self.mlp
        for matrix in (*attention.qkv.weight.chunk(3), attention.out.weight):
            nn.init.xavier_uniform_(matrix)  # q, k and v each on its own, as a (D, D) matrix
        nn.init.zeros_(attention.qkv.bias)
        nn.init.zeros_(attention.out.bias)
        for layer in (mlp.fc1, mlp.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)


class VisionTransformer(nn.Module):
    """images (B, C, H, W) -> logits (B, K), equations 1-4.

    z_0 = [x_cls; x_p^1 E; ...; x_p^N E] + E_pos
    z_l = block_l(z_{l-1}),  l = 1 ... L
    y   = LN(z_L)_cls, or the mean of LN(z_L) over the patches for `classifier="gap"`
    logits = head(tanh(pre_logits(y))) or head(y)

    New weights follow the official initialisation (vit_jax), so a new head is zero.

    Args:
        config: what to build.

    Raises:
        ImageError: on images of another size or number of channels than `config` says.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width, last = config.hidden_size, max(config.num_layers - 1, 1)
        self.stem = ResNetStem(config.resnet, config.in_channels) if config.resnet else None
        channels = config.resnet.out_channels if config.resnet else config.in_channels
        self.patch_embedding = PatchEmbedding(channels, config.patch_size, width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if config.prefix_tokens else None
        self.position_embedding = nn.Parameter(torch.empty(1, config.num_tokens, width))
        self.dropout = nn.Dropout(config.dropout_rate)
        self.blocks = nn.ModuleList(
            Block(config, config.stochastic_depth_rate * i / last) for i in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        size = config.representation_size
        self.pre_logits = nn.Linear(width, size) if size else None
        self.head = nn.Linear(size or width, config.num_classes) if config.num_classes else None
        self.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K); for a backbone without a head, the representation (B, D)."""
        return self.classify(self.represent(images))  # (B, K)

    def represent(self, images: Tensor) -> Tensor:
        """y, equation 4: what the head is given, (B, D)."""
        x = self.embed(images)  # (B, S, D)
        for block in self.blocks[:-1]:
            x = block(x)  # (B, S, D)
        x = self.blocks[-1](x, rows=self.rows_read)  # (B, 1 or S, D)
        return self.pool(x)  # (B, D)

    def classify(self, y: Tensor) -> Tensor:
        """head(tanh(pre_logits(y))), or head(y) after fine-tuning: (B, D) -> logits (B, K), or y without a head."""
        if self.pre_logits is not None:
            y = torch.tanh(self.pre_logits(y))  # (B, R)
        return y if self.head is None else self.head(y)  # (B, K)

    @property
    def rows_read(self) -> slice:
        """Tokens to compute in the last block: a head that reads CLS alone needs no other."""
        return CLS if self.config.classifier == "token" else ALL

    @property
    def pooled(self) -> slice:
        """Tokens that the head reads: CLS, or the patches whose mean it takes."""
        return CLS if self.config.classifier == "token" else slice(self.config.prefix_tokens, None)

    def read_out(self, x: Tensor) -> Tensor:
        """What the head makes of the last block's tokens: `classify` of `pool`.

        Args:
            x: z_L (B, S, D), or its `rows_read` alone.

        Returns:
            Logits (B, K); for a backbone without a head, the representation (B, D).
        """
        return self.classify(self.pool(x))  # (B, K)

    def pool(self, x: Tensor) -> Tensor:
        """y, equation 4: LN(z_L) of the CLS token, or its mean over the patches: (B, S or 1, D) -> (B, D)."""
        x = x[:, self.pooled]  # (B, 1 or N, D)
        if self.config.norm_after_pooling:
            return self.norm(x.mean(dim=1))
        return self.norm(x).mean(dim=1)

    def embed(self, images: Tensor) -> Tensor:
        """z_0, equation 1: patches projected, CLS in front, positions added: (B, S, D)."""
        self._check_images(images)
        x = images if self.stem is None else self.stem(images)  # (B, C', H', W')
        x = self.patch_embedding(x)  # (B, N, D)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)  # (B, N+1, D)
        return self.dropout(x + self.position_embedding)  # (B, S, D)

    def iter_hidden_states(self, images: Tensor) -> Iterator[Tensor]:
        """z_0 ... z_L one after the other, so that whoever needs a few does not hold them all."""
        x = self.embed(images)
        yield x
        for block in self.blocks:
            x = block(x)
            yield x  # (B, S, D)

    def hidden_states(self, images: Tensor) -> list[Tensor]:
        """The residual stream: L+1 tensors (B, S, D), before block 0 ... after block L-1."""
        return list(self.iter_hidden_states(images))

    def features(self, images: Tensor) -> Tensor:
        """All tokens after the final LayerNorm: (B, S, D)."""
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def attention(self, images: Tensor, layers: Sequence[int] = (-1,), queries: Sequence[int] | None = None) -> Tensor:
        """Where tokens read from: the attention weights of some layers.

        Recomputed from the residual stream with each block's own weights; the forward pass
        itself stays on the fused attention, and only one layer is held at a time.

        Args:
            images: (B, C, H, W), normalised.
            layers: block indices, from 0 or from the end with negative ones.
            queries: tokens whose rows are wanted, `[0]` for CLS alone; None for all S.

        Returns:
            (B, len(layers), h, queries or S, S) float32; every row sums to 1.

        Raises:
            ConfigError: when a layer or a query does not exist, or none is asked for.
        """
        wanted = as_indices(layers, self.config.num_layers, "layer")
        rows = ALL if queries is None else as_indices(queries, self.config.num_tokens, "query token")
        maps: dict[int, Tensor] = {}
        for i, x in enumerate(self.iter_hidden_states(images)):
            if i in wanted:
                block = self.blocks[i]
                assert isinstance(block, Block)
                maps[i] = block.attention.weights(block.norm1(x), rows)  # (B, h, rows, S)
            if len(maps) == len(set(wanted)):
                break
        return torch.stack([maps[i] for i in wanted], dim=1)

    def resize(self, image_size: Size | int) -> "VisionTransformer":
        """Take images of another size from now on: positions are resized in place, 2-D (section 3.2).

        Args:
            image_size: (H, W) or a square's side, a whole number of patches each way.

        Returns:
            The model itself.
        """
        config = self.config.replace(image_size=as_size(image_size, "image_size"))
        positions = resize_positions(
            self.position_embedding.data,
            self.config.grid,
            config.grid,
            prefix=config.prefix_tokens,
            mode=config.position_resize,
        )
        self.position_embedding = nn.Parameter(positions, self.position_embedding.requires_grad)
        self.config = config
        return self

    def reset_head(self, num_classes: int) -> "VisionTransformer":
        """Put a new zero-initialised linear head of `num_classes` outputs in place, as fine-tuning does.

        The pre-logits layer is dropped with the old head (section 3.2: a single linear layer).
        """
        self.config = self.config.replace(num_classes=num_classes, representation_size=None)
        self.pre_logits = None
        like = self.position_embedding
        settings: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.head = _zero_(nn.Linear(self.config.hidden_size, num_classes, **settings)) if num_classes else None
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The official initialisation of all that lies outside the blocks, which see to themselves."""
        lecun_normal_(self.patch_embedding.projection.weight)
        nn.init.zeros_(self.patch_embedding.projection.bias)  # type: ignore[arg-type]
        if self.cls_token is not None:
            nn.init.zeros_(self.cls_token)
        nn.init.normal_(self.position_embedding, std=0.02)
        if self.pre_logits is not None:
            lecun_normal_(self.pre_logits.weight)
            nn.init.zeros_(self.pre_logits.bias)
        if self.head is not None:
            _zero_(self.head)

    def _check_images(self, images: Tensor) -> None:
        channels, size = self.config.in_channels, self.config.image_size
        if images.ndim != 4 or images.shape[1] != channels:
            raise ImageError(f"images must be (B, {channels}, H, W), got shape {tuple(images.shape)}")
        if tuple(images.shape[2:]) != size:
            got = (int(images.shape[2]), int(images.shape[3]))
            try:
                self.config.check_image_size(got)
            except ConfigError as error:
                raise ImageError(f"this model takes {size[0]}x{size[1]} images; {error}") from None
            raise ImageError(
                f"this model takes {size[0]}x{size[1]} images, got {got[0]}x{got[1]}: "
                f"resize the pictures, or the positions with model.resize({got})"
            )


def _zero_(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; every part gets its own mode back, as they can differ (a frozen one, say)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
