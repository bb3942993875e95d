"""A BERT encoder in numpy: token ids in, one vector per text out.

Called by model.py. Everything is f32. Post-norm layers as in Devlin et al. 2018 (arXiv:1810.04805); the pooling is that
of all-MiniLM-L6-v2: the mean over the text's own tokens, scaled to length 1. Always holds: what stands in the padding
never reaches a result.
"""

import numpy as np

# Abramowitz & Stegun 7.1.26: erfc(z) = t (a1 + t (a2 + ...)) exp(-z*z) with t = 1 / (1 + p z), error below 1.5e-7.
ERFC_P = 0.3275911
ERFC_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
# Rows of the widest array that gelu takes at a time: 32 x 1536 f32 and its two helpers stay in the second-level cache.
GELU_ROWS = 32


class Bert:
    """The weights of one encoder and its forward pass.

    `tensors` maps the names of the checkpoint to f32 arrays, `config` is the checkpoint's config.json.
    """

    def __init__(self, tensors, config):
        self.heads = config["num_attention_heads"]
        self.width = config["hidden_size"]
        self.eps = np.float32(config["layer_norm_eps"])
        self.words = tensors["embeddings.word_embeddings.weight"]
        # The segment is always 0 for a single text per row: its vector is added to the positions once and for all.
        self.places = (
            tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self.norm = norm_of(tensors, "embeddings.LayerNorm")
        self.layers = [
            Layer(tensors, f"encoder.layer.{number}.", self.heads) for number in range(config["num_hidden_layers"])
        ]

    def encode(self, ids, lengths):
        """Vectors of length 1, f32 [texts, width].

        `ids` is int [texts, tokens], padded at the end of each row with any valid id; `lengths` is int [texts], each
        at least 1.
        """
        texts, tokens = ids.shape
        hidden = self.words[ids]
        hidden += self.places[:tokens]
        layer_norm(hidden, self.norm, self.eps)

        own = np.arange(tokens) < lengths[:, None]
        penalty = None if own.all() else np.where(own, np.float32(0), np.float32(-1e9))[:, None, None, :]
        work = Workspace(texts, tokens, self.heads, self.width, self.layers[0].inner)
        for layer in self.layers:
            layer.forward(hidden, penalty, work, self.eps)

        hidden *= own[:, :, None]
        pooled = hidden.sum(axis=1)
        # The mean's divisor falls out with the scaling to length 1.
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        return pooled


class Workspace:
    """The arrays all layers write into, made once per batch."""

    def __init__(self, texts, tokens, heads, width, inner):
        self.qkv = np.empty((texts, tokens, 3, heads, width // heads), np.float32)
        self.scores = np.empty((texts, heads, tokens, tokens), np.float32)
        self.mixed = np.empty((texts, tokens, heads, width // heads), np.float32)
        self.out = np.empty((texts, tokens, width), np.float32)
        self.inner = np.empty((texts * tokens, inner), np.float32)


class Layer:
    """Self-attention and a feed-forward part, each added to its input and normalised."""

    def __init__(self, tensors, prefix, heads):
        def linear(name):
            # Checkpoints keep [out, in]; laid out as [in, out] a short text takes a quarter less time.
            return np.ascontiguousarray(tensors[f"{prefix}{name}.weight"].T), tensors[f"{prefix}{name}.bias"]

        (q, q_bias), (k, k_bias), (v, v_bias) = (linear(f"attention.self.{part}") for part in ("query", "key", "value"))
        # A single product instead of three, and the 1/sqrt(head width) of the scores goes into the queries.
        scale = np.float32((q.shape[1] // heads) ** -0.5)
        self.qkv = np.concatenate((q * scale, k, v), axis=1)
        self.qkv_bias = np.concatenate((q_bias * scale, k_bias, v_bias))
        self.mix, self.mix_bias = linear("attention.output.dense")
        self.mix_norm = norm_of(tensors, f"{prefix}attention.output.LayerNorm")
        self.up, self.up_bias = linear("intermediate.dense")
        self.down, self.down_bias = linear("output.dense")
        self.down_norm = norm_of(tensors, f"{prefix}output.LayerNorm")
        self.inner = self.up.shape[1]

    def forward(self, hidden, penalty, work, eps):
        """Replaces `hidden`, f32 [texts, tokens, width], by this layer's output."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        out = work.out.reshape(flat.shape)

        qkv = work.qkv.reshape(len(flat), -1)
        np.matmul(flat, self.qkv, out=qkv)
        qkv += self.qkv_bias
        attend(work, penalty)
        np.matmul(work.mixed.reshape(flat.shape), self.mix, out=out)
        out += self.mix_bias
        hidden += work.out
        layer_norm(hidden, self.mix_norm, eps)

        np.matmul(flat, self.up, out=work.inner)
        work.inner += self.up_bias
        gelu(work.inner)
        np.matmul(work.inner, self.down, out=out)
        out += self.down_bias
        hidden += work.out
        layer_norm(hidden, self.down_norm, eps)


def attend(work, penalty):
    """Fills `work.mixed` from `work.qkv`. `penalty` [texts, 1, 1, tokens] is added to the scores of padding."""
    queries, keys, values = work.qkv.transpose(2, 0, 3, 1, 4)
    scores = work.scores
    np.matmul(queries, keys.swapaxes(-1, -2), out=scores)
    if penalty is not None:
        scores += penalty
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = work.mixed.transpose(0, 2, 1, 3)
    np.matmul(scores, values, out=mixed)
    # The softmax's divisor is applied to the narrower side of the product.
    mixed /= scores.sum(axis=-1, keepdims=True)


def norm_of(tensors, name):
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def layer_norm(x, weight_bias, eps):
    """In place, over the last axis."""
    weight, bias = weight_bias
    x -= x.mean(axis=-1, keepdims=True)
    variance = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    x /= np.sqrt(variance + eps)
    x *= weight
    x += bias


def gelu(x):
    """In place: x Phi(x) = max(x, 0) - |x|/2 erfc(|x|/sqrt 2), the exact form and not the tanh one."""
    z = np.empty((min(GELU_ROWS, len(x)), x.shape[1]), np.float32)
    t, tail = np.empty_like(z), np.empty_like(z)
    for first in range(0, len(x), GELU_ROWS):
        rows = x[first : first + GELU_ROWS]
        gelu_rows(rows, z[: len(rows)], t[: len(rows)], tail[: len(rows)])


def gelu_rows(x, z, t, tail):
    np.abs(x, out=z)
    np.multiply(z, np.float32(ERFC_P * 0.5**0.5), out=t)
    t += np.float32(1)
    np.reciprocal(t, out=t)
    np.multiply(t, np.float32(ERFC_A[0]), out=tail)
    for a in ERFC_A[1:]:
        tail += np.float32(a)
        tail *= t
    np.multiply(z, z, out=t)
    t *= np.float32(-0.5)
    np.exp(t, out=t)
    tail *= t
    z *= np.float32(0.5)
    tail *= z
    np.maximum(x, np.float32(0), out=x)
    x -= tail
