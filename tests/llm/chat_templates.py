"""Chat templates of the kinds that are found in the wild, and a tokenizer to write them with."""

from __future__ import annotations

from functools import cache

from small_models import TEXTS, small_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTROL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|say|>")


def _template(content: str = "m.content", *, before: str = "", begin: str = "") -> str:
    begin = begin or "'<|im_start|>assistant\\n'"
    return (
        f"{before}{{% for m in messages %}}"
        f"{{{{ '<|im_start|>' + m.role + '\\n' + {content} + '<|im_end|>\\n' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {begin} }}}}{{% endif %}}"
    )


_SPLIT = "(m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content)"
_NO_SYSTEM = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate, from user on') }}{% endif %}{% endfor %}"
)
CHATML = _template()
DEFAULT_SYSTEM = _template(
    before="{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
)
LONG_BEGINNING = (
    "{% for m in messages %}{{ '<|im_start|><|say|><|im_start|>\\n' if m.role == 'assistant' else "
    "'<|im_start|>' + m.role }}{{ m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|><|say|><|im_start|>\\n' }}{% endif %}"
)
STRIPPING = (  # thoughts before the last user's message are left out; later answers must have one
    "{% set last = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' %}{% set cut = m.content.split('</think>') %}"
    "{% if loop.index0 > last.user %}{{ '<think>\\n' }}"
    "{{ cut[0].split('<think>')[-1].strip('\\n') if cut[1:] else '' }}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}"
    "{{ cut[-1].lstrip('\\n') if cut[1:] else m.content }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
THINK_BEGUN = _template(_SPLIT, begin="'<|im_start|>assistant\\n<think>\\n'")
NO_SYSTEM = _template(before=_NO_SYSTEM)
TRIMMING = _template("(m.content | trim)")
BETWEEN = CHATML.replace("'<|im_end|>\\n'", "'<|im_end|>' + ('' if loop.last else '\\n')").replace(
    "{{ '<|im_start|>assistant", "{{ '\\n<|im_start|>assistant"
)
FOLDED_SYSTEM = (  # the system message opens the first user's
    "{% set off = 1 if messages[0].role == 'system' else 0 %}"
    "{% for m in messages[off:] %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if off and loop.first %}{{ messages[0].content | trim + '\\n\\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MOVED_SYSTEM = (  # the system message opens the last user's
    "{% set off = 1 if messages[0].role == 'system' else 0 %}{% set last = namespace(user=-1) %}"
    "{% for m in messages[off:] %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages[off:] %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if off and loop.index0 == last.user %}{{ messages[0].content + '\\n\\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WHOLE = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "long beginning": LONG_BEGINNING,
    "no system": NO_SYSTEM,
    "trimming": TRIMMING,
    "newline between": BETWEEN,
    "folded system": FOLDED_SYSTEM,
}
TURNS = {"stripping": STRIPPING, "think begun": THINK_BEGUN, "moved system": MOVED_SYSTEM}
EVERY = WHOLE | TURNS


@cache
def _trained() -> str:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(small_tokenizer()),  # what `small_model` has rows for
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([*TEXTS * 4, "<think>", "system user assistant"] * 2, trainer)
    return raw.to_str()


def chat_tokenizer(template: str, *, loose: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """`loose` tokens are added, but not marked as special."""
    raw = Tokenizer.from_str(_trained())
    for name in loose:
        raw.add_tokens([AddedToken(name, special=False, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = template
    return tokenizer
