"""Lesson 14, serving: the merged model behind an OpenAI-compatible address, asked as a team would ask it.

    python examples/hello_agents/14_serve.py                  # serve, ask one question, stop
    python examples/hello_agents/14_serve.py --port 8000      # serve until Ctrl-C

This server is for trying out: this machine only, one request at a time. For real traffic give the merged folder to an
inference server (`vllm serve runs/hello_agents/merged`). A team takes any such address for its frozen roles:
[engines.large] base_url = "http://localhost:8000/v1". A reply holds no confidence: nothing here could measure one.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from lesson import earlier, settings, tool_for
from word_problems import HELD_OUT, problem

from gruppo.engines.local import LocalEngine
from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.training.model import ModelConfig, load_base
from gruppo.types import Request, Sampling

MOST = 512  # tokens of a reply


def server(model_folder: Path, port: int) -> HTTPServer:
    """Answers POST /v1/chat/completions; port 0 takes a free one."""
    tokenizer, model = load_base(ModelConfig(base=str(model_folder)))
    engine = LocalEngine(model, tokenizer, activate=lambda policy: nullcontext(model), version=lambda policy: 0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sampling = Sampling(asked.get("temperature", 0.7), max_tokens=min(asked.get("max_tokens", MOST), MOST))
            (done,) = asyncio.run(engine.generate([Request(asked["messages"], sampling, asked.get("seed", 0))]))
            message = {"role": "assistant", "content": done.text}
            choice = {"index": 0, "message": message, "finish_reason": str(done.stop_reason)}
            body = json.dumps({"object": "chat.completion", "model": model_folder.name, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve the folder of lesson 13, and be its first client."""
    chosen = settings(__doc__, port=0)
    folder = Path(earlier("13_merge.py", "merged", tool_for(chosen), chosen))
    with server(folder, chosen.port) as own:
        print(f"serving {folder} at http://127.0.0.1:{own.server_address[1]}/v1", flush=True)
        if chosen.port:
            own.serve_forever()
        Thread(target=own.serve_forever, daemon=True).start()
        address = OpenAIConfig(base_url=f"http://127.0.0.1:{own.server_address[1]}/v1", model=folder.name)
        question = problem(HELD_OUT)["question"]
        asked = Request([{"role": "user", "content": question}], Sampling(0.0, max_tokens=chosen.tokens), seed=0)
        (done,) = asyncio.run(OpenAIEngine(address).generate([asked]))
        print(f"asked: {question}\nanswered: {done.text}")
        own.shutdown()


if __name__ == "__main__":
    main()
