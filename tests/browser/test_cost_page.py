"""The explorer of costs in a browser: the numbers of the page are those of the formulas, as strings."""

import torch
from explorer_samples import cost

from course_lib.config import TransformerConfig
from course_lib.scaling import count_flops, count_parameters, kv_cache_bytes, six_n_d, training_memory
from coursework.pictures.arrays import power_of_ten


def rows(page, title):
    return page.get_by_role("table", name=title).evaluate(
        "t => [...t.rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
    )


def check(page, batch, length, *, architecture="decoder", dtype=torch.bfloat16, processes=8, recompute=False):
    """Build the config that the page prints, and compare every number with what the package says of it."""
    config = eval(page.locator(".cx-formula code").inner_text(), {"TransformerConfig": TransformerConfig})
    named = {"architecture": architecture, "recompute": recompute}
    parameters = count_parameters(config, architecture)
    total = parameters.total()
    assert dict(rows(page, "Parameters")) == {"all": f"{total:,}", **{k: f"{n:,}" for k, n in parameters.items()}}
    flops = count_flops(config, batch, length, backward=True, **named)
    assert dict(rows(page, "Operations of a step")) == {
        "all": power_of_ten(flops.total(), 4),
        **{k: power_of_ten(n, 4) for k, n in flops.items()},
    }
    stages = [
        training_memory(config, batch, length, dtype=dtype, ranks=processes, sharding=stage, **named)
        for stage in (0, 1, 2, 3)
    ]
    expected = [["", "stage 0", "stage 1", "stage 2", "stage 3"]]
    expected += [[part, *(f"{stage[part] / 2**30:.2f}" for stage in stages)] for part in stages[0]]
    expected.append(["all", *(f"{stage.total() / 2**30:.2f}" for stage in stages)])
    assert rows(page, "GiB in one process") == expected
    in_tables = parameters["token tables"] + parameters["positions"] + parameters["head"]
    N = total - in_tables + config.vocab_size * config.d_model
    source = length if architecture == "encoder-decoder" else None
    cache = kv_cache_bytes(config, batch, length, dtype=dtype, source_length=source)
    said = page.get_by_role("status").inner_text()
    assert f"width {config.d_model}: {total:,} parameters." in said
    assert f"A training step of {batch} × {length} tokens has {power_of_ten(flops.total(), 4)} operations, " in said
    assert f"{flops.total() / six_n_d(N, batch * length):.2f} times 6ND with the {N:,} parameters" in said
    assert f"takes {cache / 2**30:.2f} GiB" in said


def test_costs_are_those_of_the_package_under_every_control(open_page):
    page = open_page(cost(number_bytes=2))
    check(page, 2, 2048)

    def choose(label):
        return page.get_by_label(label, exact=True)

    choose("Model").select_option(label="the paper, base")
    check(page, 2, 2048, architecture="encoder-decoder")
    choose("Tokens in a sequence").select_option(label="512")
    choose("Recompute activations").check()
    check(page, 2, 512, architecture="encoder-decoder", recompute=True)
    choose("Model").select_option(label="GPT-3")
    choose("Numbers").select_option(label="float32")
    choose("Processes").select_option(label="512")
    check(page, 2, 512, dtype=torch.float32, processes=512, recompute=True)
    choose("Model").select_option(label="Llama 3 405B")
    choose("Sequences").select_option(label="16")
    check(page, 16, 512, dtype=torch.float32, processes=512, recompute=True)
    assert "Own sizes" not in page.get_by_role("status").inner_text()
    choose("Layers").fill("7")
    choose("Heads").fill("24")
    choose("Width of a head").select_option(label="80")
    check(page, 16, 512, dtype=torch.float32, processes=512, recompute=True)
    assert "Own sizes after Llama 3 405B" in page.get_by_role("status").inner_text()
    choose("Heads of keys and values").select_option(label="one each")
    choose("Recompute activations").uncheck()
    check(page, 16, 512, dtype=torch.float32, processes=512)
    page.get_by_role("button", name="Reset").click()
    check(page, 2, 2048)
