"""Greedy, beam and sampled generation of the families, token by token as transformers does it."""

import pytest
import torch
from families import DECODERS, FAMILIES, PAD
from hypothesis import given, settings
from published import shake, through_folder
from thorough import rounds
from tiny_models import of_transformers, same
from transformers import set_seed

from course_lib.generation import beam_search, generate, pad_left

NEW, STOP = 9, 1


def prompts_of(config):
    rows = [torch.randint(3, config.vocab_size, (n,)).tolist() for n in (6, 2, 4)]
    return pad_left(rows, PAD)


def fresh(theirs):
    """Forget lengths seen before: their dynamic frequencies stay as long as the longest sequence so far."""
    if hasattr(theirs, "model"):
        theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config=theirs.config)
    return theirs


@pytest.mark.parametrize("name", [*DECODERS, "T5"])
def test_tokens_equal_transformers(name, note):
    done = []

    @given(theirs=FAMILIES[name].draw)
    @settings(deadline=None, max_examples=rounds(8, 40), derandomize=True, database=None)
    def each(theirs):
        torch.manual_seed(1)
        ours = through_folder(shake(theirs))
        tokens, mask = prompts_of(theirs.config)
        ours_takes, theirs_take = {"prompt_mask": mask}, (tokens, mask)
        prompt = tokens
        if name == "T5":
            source = tokens.flip(1)  # padding on the right
            prompt, ours_takes, theirs_take = tokens.new_full((3, 1), PAD), {"source": source}, (source, source != PAD)
        options = {"max_new_tokens": NEW, "stop": STOP, "pad_id": PAD, **ours_takes}

        greedy = of_transformers(fresh(theirs), *theirs_take, max_new_tokens=NEW, do_sample=False)
        same(generate(ours, prompt, temperature=0, **options), greedy)

        beams = of_transformers(fresh(theirs), *theirs_take, max_new_tokens=NEW, num_beams=3, do_sample=False)
        same(beam_search(ours, prompt, n_beams=3, **options).tokens[:, 0], beams)

        sampling = {"temperature": 0.8, "top_k": 7, "top_p": 0.9}
        set_seed(5)
        drawn = of_transformers(fresh(theirs), *theirs_take, max_new_tokens=NEW, do_sample=True, **sampling)
        torch.manual_seed(5)
        same(generate(ours, prompt, **sampling, **options), drawn)
        done.append(greedy.numel() + beams.numel() + drawn.numel())

    each()
    assert len(done) >= rounds(8, 40)
    note(f"{name}: greedy, 3 beams and samples equal transformers in {len(done)} models, {sum(done)} tokens")
