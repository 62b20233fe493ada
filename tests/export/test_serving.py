"""From a run's folder to an answer over HTTP: `course export`, llama.cpp's server on loopback, and a plain client."""

import http.client
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exported import RMS, decoder, llama_server, shaken
from typer.testing import CliRunner

from course_lib import generation
from course_lib.data import BPETokenizer, CharTokenizer
from course_lib.data.fast_bpe import FastBPETokenizer
from course_lib.variants import save_pretrained
from coursework import cli
from coursework.export import export

TEXT = "The cat sat on the mat, and the dog saw the cat; thé löwe sat.\n" * 3
TOKENIZERS = {
    "characters": CharTokenizer.train([TEXT]),
    "bytes": FastBPETokenizer(BPETokenizer.train([TEXT], 290).to_json()),
}


def run_folder(path, tokenizer):
    """What a finished `course train lm` leaves, of a decoder that llama.cpp has."""
    model = shaken(lambda: decoder(**RMS, activation="relu2", vocab_size=tokenizer.vocab_size))
    save_pretrained(model, path, more={"tokenizer.json": tokenizer.to_text()})
    return model


def ask(address, path, question=None, timeout=30):
    """The answer of a server to a question in JSON, without any library of OpenAI's."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=timeout)
    try:
        body = None if question is None else json.dumps(question)
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_run_is_served_over_http(kind, tmp_path):
    tokenizer, prompt = TOKENIZERS[kind], "the löwe sat  on"
    model = run_folder(tmp_path / "run", tokenizer)
    done = CliRunner().invoke(cli.app, ["export", str(tmp_path / "run"), "--to", "gguf"])
    path = tmp_path / "run" / "gguf" / "model.gguf"
    assert (done.exit_code, done.output) == (0, f"llama.cpp opens {path}\n")

    ids = tokenizer.encode(prompt)
    new = generation.generate(
        model, torch.tensor([ids]), max_new_tokens=24, temperature=0, stop=tokenizer.eos_id
    )  # fmt: skip
    expected = tokenizer.decode(new[0, len(ids) :])
    server = llama_server(path, hostnames=["127.0.0.1"], port=0)
    try:
        address = server.listening_address
        assert address.startswith("http://127.0.0.1:")
        assert ask(address, "/health")[0] == 200
        assert ask(address, "/tokenize", {"content": prompt})[1]["tokens"] == ids
        question = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
        status, answer = ask(address, "/v1/completions", question)
    finally:
        del server
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == len(ids)
    written = answer["choices"][0]["text"]
    print(f"{kind}: {written!r} over HTTP from {address}")
    assert written == expected
    with pytest.raises(OSError, match="refused"):
        ask(address, "/health", timeout=5)


def test_the_program_of_the_page_serves(tmp_path):
    """The block of docs/serving.md itself, with another file and a free port, and the question that it asks by curl."""
    tokenizer = TOKENIZERS["characters"]
    model = run_folder(tmp_path / "run", tokenizer)
    path = export(tmp_path / "run", to="gguf", out=tmp_path / "out")
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    program = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "xllamacpp" in block)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = program.replace("runs/lm/gguf/model.gguf", str(path)).replace("8080", str(port))
    assert str(port) in program
    question = {**json.loads(re.search(r"-d '(.*)'", page)[1]), "prompt": "the cat", "max_tokens": 6}
    served = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert served.stdout.readline().decode().strip() == f"http://127.0.0.1:{port}"
        status, answer = ask(f"http://127.0.0.1:{port}", "/v1/completions", question)
    finally:
        served.terminate()
        served.wait(timeout=30)
    ids = tokenizer.encode("the cat")
    new = generation.generate(model, torch.tensor([ids]), max_new_tokens=6, temperature=0)[0, len(ids) :]
    assert (status, answer["choices"][0]["text"]) == (200, tokenizer.decode(new))


def test_errors_of_the_command_are_one_line(tmp_path):
    model = tmp_path / "run"
    run_folder(model, TOKENIZERS["characters"])
    for arguments, expected in (
        ([model, "--to", "onxx"], "to: expected one of transformers, gguf, ctranslate2, onnx, got 'onxx'"),
        ([model, "--to", "gguf", "--dtype", "int4"], "dtype: expected one of float32, float16, int8, got 'int4'"),
        ([tmp_path / "none", "--to", "gguf"], "MODEL: there is no folder"),
        (["hf:some/model", "--to", "gguf"], "--out: expected a folder to write"),
    ):
        done = CliRunner().invoke(cli.app, ["export", *map(str, arguments)])
        assert done.exit_code == 2
        assert done.output.startswith(f"course: {expected}")
        assert done.output.count("\n") == 1


def test_transformers_opens_a_run_without_this_package(tmp_path):
    prompt, written = "the löwe sat  on", {}
    for kind, tokenizer in TOKENIZERS.items():
        switches = {**RMS, "activation": "silu", "gated": True, "norm": "unit", "qk_norm": "unit", "window": 9}
        model = shaken(lambda: decoder(**switches, vocab_size=tokenizer.vocab_size))  # noqa: B023
        save_pretrained(model, tmp_path / kind, more={"tokenizer.json": tokenizer.to_text()})
        done = CliRunner().invoke(cli.app, ["export", str(tmp_path / kind), "--to", "transformers"])
        folder = str(tmp_path / kind / "transformers")
        assert done.output == f"transformers opens {folder}\n"
        ids = torch.tensor([tokenizer.encode(prompt)])
        new = generation.generate(model, ids, max_new_tokens=24, temperature=0, stop=tokenizer.eos_id)[0]
        written[folder] = new.tolist()
    program = """if True:
        import sys
        from transformers import AutoModelForCausalLM, AutoTokenizer
        for folder in sys.argv[2:]:
            model, tokenizer = (kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
            ids = tokenizer(sys.argv[1], return_tensors="pt", add_special_tokens=False).input_ids
            print(model.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist())
        assert "course_lib" not in sys.modules"""
    command = [sys.executable, "-c", program, prompt, *written]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert list(map(json.loads, lines)) == list(written.values())
