"""Whether a sampler has the weights that are trained: an adapter that never reached it, or a copy
that was not renewed, looks like slow learning and costs weeks."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from dreamgym.llm.local import LocalLLM
from dreamgym.types import DreamGymError

_LENGTH = 12
_TOLERANCE = {torch.float32: 1e-3}
_COARSE = 0.25
"""For half precision, where two orders of summing are as far apart as that."""


class WeightsDiffer(DreamGymError):
    """Sampler and learner do not compute the same policy."""


@torch.no_grad()
def check_same_weights(policy: LocalLLM, model: PreTrainedModel) -> float:
    """The largest difference of log-probabilities on a canary prompt; raises WeightsDiffer."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    ids = [7 * i % vocabulary for i in range(1, 1 + min(_LENGTH, policy.decoder.context - 1))]
    sampled = policy.decoder.feed([ids], [0], [0])[0].log_softmax(-1)
    trained = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    gap = (sampled - trained.logits[0, -1].float().log_softmax(-1)).abs().max().item()
    if not gap <= _TOLERANCE.get(policy.decoder.dtype, _COARSE):
        raise WeightsDiffer(
            f"the sampler's log-probabilities are {gap:.2g} away from the learner's: it has other "
            "weights. Nothing was sampled; this is a bug of the weight transfer, please report it"
        )
    return gap
