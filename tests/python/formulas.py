"""Attention and its gradients in numpy, written from the semantics for dense (B, S, H, D) arrays, in float64."""
import numpy as np


def philox(counter, key):
    """Philox-4x32-10. counter: four uint32 arrays, key: a 64-bit number. Returns four arrays of words."""
    c = [np.asarray(x, np.uint64) for x in counter]
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> np.uint64(32) ^ c[1] ^ np.uint64(k0), p1 & low, p0 >> np.uint64(32) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout_factor(shape, p, seed, offset):
    """Returns (B, H, Sq, Sk): 1/(1-p) where dropout keeps an element, else 0."""
    if p == 0:
        return np.ones(shape)
    batch, heads, rows, columns = shape
    head, row, column = np.meshgrid(np.arange(batch * heads), np.arange(rows), np.arange(columns), indexing="ij")
    words = philox((column // 4, row, head, np.full_like(row, offset)), seed)
    word = np.choose(column % 4, words)
    return np.where(word >= np.uint64(round(p * 2**32)), 1 / (1 - p), 0).reshape(shape)


def lengths(case, rows, keys):
    """(B), (B): the query rows and the keys in use of each sequence."""
    batch = case["q"].shape[0]
    return (np.asarray(case.get(name, np.full(batch, full)))
            for name, full in (("seqused_q", rows), ("seqused_k", keys)))


def visible(case, rows, keys, heads):
    """(B, H, Sq, Sk) booleans: which keys each row sees."""
    batch = case["q"].shape[0]
    rows_in_use, keys_in_use = lengths(case, rows, keys)
    seen = np.zeros((batch, heads, rows, keys), bool)
    i, j = np.arange(rows)[:, None], np.arange(keys)[None, :]
    for b in range(batch):
        d = 0 if case.get("top_left") else int(keys_in_use[b] - rows_in_use[b])
        shown = (j < keys_in_use[b]) & (i < rows_in_use[b])
        if case.get("causal"):
            shown &= j <= i + d
        left, right = case.get("window", (-1, -1))
        if left >= 0:
            shown &= j >= i + d - left
        if right >= 0:
            shown &= j <= i + d + right
        if "slices" in case:
            listed = np.zeros((heads, rows, keys), bool)
            for q0, q1, k0, k1, kind, head in case["slices"]:
                part = (i >= q0) & (i < q1) & (j >= k0) & (j < k1)
                if kind & 1:
                    part = part & (j - k0 <= i - q0 + (k1 - k0) - (q1 - q0))
                if kind & 2:
                    part = part & (j - k0 >= i - q0)
                listed[slice(None) if head < 0 else head] |= part
            shown = shown & listed
        seen[b] = shown
    if "mask" in case:
        seen &= case["mask"]
    return seen


def attention(case):
    """Returns two dicts of float64 arrays: out, lse and, if the case has dout, the gradients; and for each gradient the
    same sum over absolute values, which its rounding errors are in proportion to (the terms of a gradient cancel)."""
    q, k, v = (case[x].astype(np.float64).transpose(0, 2, 1, 3) for x in "qkv")  # (B, H, S, D)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = case.get("scale", 1 / np.sqrt(q.shape[-1]))
    raw = scale * q @ k.swapaxes(-1, -2)
    cap = case.get("softcap", 0)
    score = cap * np.tanh(raw / cap) if cap else raw
    slope = 1 - (score / cap) ** 2 if cap else np.ones_like(raw)
    rows, keys = raw.shape[-2:]
    if "bias" in case:
        score = score + case["bias"].astype(np.float64)
    if "alibi_slopes" in case:
        rows_in_use, keys_in_use = lengths(case, rows, keys)
        d = np.zeros(q.shape[0]) if case.get("top_left") else keys_in_use - rows_in_use
        distance = np.abs(np.arange(rows)[:, None] + d[:, None, None, None] - np.arange(keys))
        score = score - case["alibi_slopes"].astype(np.float64)[:, None, None] * distance
    score = np.where(visible(case, rows, keys, q.shape[1]), score, -np.inf)
    sink = case["sink"].astype(np.float64)[None, :, None] if "sink" in case else np.full((1, 1, 1), -np.inf)
    in_use = np.arange(rows) < list(lengths(case, rows, keys))[0][:, None, None]  # (B, 1, Sq)
    sink = np.where(in_use, sink, -np.inf)
    top = np.maximum(score.max(-1, initial=-np.inf), sink)
    top = np.where(np.isneginf(top), 0, top)
    weight = np.exp(score - top[..., None])
    total = weight.sum(-1) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    prob = weight / np.where(total == 0, 1, total)[..., None]
    factor = dropout_factor(prob.shape, case.get("dropout", 0), case.get("seed", 0), case.get("offset", 0))
    out = (prob * factor) @ v
    results = {"out": out.transpose(0, 2, 1, 3), "lse": lse}
    sizes = {}
    if "dout" in case:
        for signed, target in ((True, results), (False, sizes)):
            size = (lambda x: x) if signed else np.abs
            dout, dlse = (size(np.asarray(case.get(x, 0.0), np.float64)) for x in ("dout", "dlse"))
            dout = dout.transpose(0, 2, 1, 3)
            delta = np.where(in_use, (size(out) * dout).sum(-1) + (-dlse if signed else dlse), 0)
            dprob = (dout @ size(v).swapaxes(-1, -2)) * factor
            dbias = prob * (dprob + (-1 if signed else 1) * delta[..., None])
            draw = size(scale) * dbias * slope
            per_kv = lambda x: x.reshape(x.shape[0], x.shape[1] // group, group, *x.shape[2:]).sum(2)
            target["dq"] = (draw @ size(k)).transpose(0, 2, 1, 3)
            target["dk"] = per_kv(draw.swapaxes(-1, -2) @ size(q)).transpose(0, 2, 1, 3)
            target["dv"] = per_kv((prob * factor).swapaxes(-1, -2) @ dout).transpose(0, 2, 1, 3)
            if "bias" in case:
                shape = (1,) * (4 - case["bias"].ndim) + case["bias"].shape
                axes = tuple(d for d in range(4) if shape[d] == 1)
                target["dbias"] = dbias.sum(axes, keepdims=True).reshape(case["bias"].shape)
            if "alibi_slopes" in case:
                target["dalibi_slopes"] = (-1 if signed else 1) * (dbias * distance).sum((0, 2, 3))
            if "sink" in case:
                share = np.exp(sink - np.where(np.isneginf(lse), 0, lse))
                target["dsink"] = (-1 if signed else 1) * (share * delta).sum((0, 2))
    return results, sizes
