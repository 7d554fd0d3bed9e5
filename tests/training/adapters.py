"""Tiny base models with real peft adapters on them, whose weights are not those of a fresh one."""

from pathlib import Path
from typing import Any

VOCABULARY = 64


def llama(
    folder: Path, *, hidden: int = 32, tied: bool = False, dtype: str = "float32", seed: int = 0
) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=tied,
    )
    return saved(LlamaForCausalLM(config).to(getattr(torch, dtype)), folder)


def gpt2(folder: Path) -> Path:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        eos_token_id=1,
        bos_token_id=1,
    )
    return saved(GPT2LMHeadModel(config), folder)


def saved(model: Any, folder: Path) -> Path:
    model.generation_config.temperature = 0.5
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer(folder)
    return folder


def tokenizer(folder: Path, extra: int = 0) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        "<pad>": 0,
        "</s>": 1,
        **{f"w{number}": number for number in range(2, VOCABULARY + extra)},
    }
    inner = Tokenizer(models.WordLevel(words, unk_token="w2"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="w2"
    )
    made.chat_template = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
    made.save_pretrained(folder)


def adapter(
    base: Path,
    folder: Path,
    *,
    extra: int = 0,
    scale: float = 0.3,
    task: str = "CAUSAL_LM",
    labels: int = 3,
    **lora: Any,
) -> Path:
    """Save an adapter for `base`, with random weights of `scale` in all that it trains."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(5)
    if task == "SEQ_CLS":
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    else:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if extra:
        model.resize_token_embeddings(VOCABULARY + extra, mean_resizing=False)
    made = get_peft_model(model, LoraConfig(task_type=task, r=4, lora_alpha=8, **lora))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * scale)
    made.save_pretrained(folder)
    if extra:
        tokenizer(folder, extra)
    return folder
