"""Train a small language model on text that comes with Python: it learns to write the next letter.

horovodrun -np 2 python examples/torch_language.py
horovodrun -np 2 python examples/torch_language.py --text book.txt --epochs 20 --write 400

A transformer of two layers reads 64 letters and says the next one after each. Gradients of several passes are
added up before they are exchanged, and travel as bfloat16. With --mixed it also computes in mixed precision.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import horovod.torch as hvd

READ = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="a text to learn; by default Python's own help")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces per process and pass")
    parser.add_argument(
        "--passes", type=int, default=2, help="passes whose gradients are added up for a step"
    )
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--mixed", action="store_true", help="compute in bfloat16 where that is exact enough")
    parser.add_argument("--write", type=int, default=0, help="letters to write at the end")
    parser.add_argument(
        "--reach", type=float, default=math.inf, help="fail if it needs more bits for a letter"
    )
    return parser.parse_args()


def letters(file: Path | None) -> tuple[Tensor, list[str]]:
    """The text as numbers (int64, one for each letter), and the letters that they stand for.

    Letters that are rare become blanks, so that any text has an alphabet of at most 96.
    """
    text = file.read_text() if file else "\n".join(pydoc_data.topics.topics.values())
    counts = {letter: text.count(letter) for letter in set(text)}
    alphabet = sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:96])
    blank = alphabet.index(" ")
    number = {letter: place for place, letter in enumerate(alphabet)}
    return torch.tensor([number.get(letter, blank) for letter in text]), alphabet


class Model(nn.Module):
    """From numbers of letters, (pieces, length), to scores of the next letter, (pieces, length, alphabet)."""

    def __init__(self, alphabet: int, width: int = 64) -> None:
        super().__init__()
        self.letter = nn.Embedding(alphabet, width)
        self.place = nn.Embedding(READ, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.next = nn.Linear(width, alphabet)

    def forward(self, numbers: Tensor) -> Tensor:
        length = numbers.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        read = self.letter(numbers) + self.place(torch.arange(length))
        return self.next(self.layers(read, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def pieces(text: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` pieces from anywhere in the text, and the letters that follow each of their letters."""
    starts = torch.randint(0, len(text) - READ - 1, (count,), generator=generator)
    found = torch.stack([text[start : start + READ + 1] for start in starts.tolist()])
    return found[:, :-1], found[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    read, follow = batch
    return F.cross_entropy(model(read).flatten(0, 1), follow.flatten())


def bits(model: nn.Module, text: Tensor) -> float:
    """Bits for a letter of a text that was not learned: the mean over all ranks, with pieces of their own."""
    with torch.no_grad():
        loss = loss_of(model, pieces(text, 64, torch.Generator().manual_seed(hvd.rank())))
    return float(hvd.allreduce(loss, name="loss")) / math.log(2)


def written(model: nn.Module, begin: Tensor, count: int, alphabet: list[str]) -> str:
    """``count`` letters that the model writes after ``begin``."""
    numbers = begin.tolist()
    for _ in range(count):
        with torch.no_grad():
            scores = model(torch.tensor([numbers[-READ:]]))[0, -1]
        numbers.append(int(torch.multinomial((scores / 0.7).softmax(0), 1)))
    return "".join(alphabet[number] for number in numbers)


def main() -> None:
    args = arguments()
    hvd.init()
    torch.manual_seed(1)
    text, alphabet = letters(args.text)
    learn, judge = text[: -len(text) // 10], text[-len(text) // 10 :]

    model = Model(len(alphabet))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=args.lr),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.passes,
        compression=hvd.Compression.bf16,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)

    generator = torch.Generator().manual_seed(100 + hvd.rank())  # every rank reads elsewhere
    before = bits(model, judge)
    for step in range(args.steps):
        optimizer.zero_grad()
        for _ in range(args.passes):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.mixed):
                loss = loss_of(model, pieces(learn, args.batch_size, generator))
            (loss / args.passes).backward()
        optimizer.step()
        schedule.step()
        if hvd.rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}/{args.steps}", flush=True)

    after = bits(model, judge)
    if hvd.rank() == 0:
        print(f"bits for a letter: {before:.2f} before, {after:.2f} after; {len(alphabet)} letters")
        if args.write:
            print(written(model, judge[:READ], args.write, alphabet))
    hvd.shutdown()
    if after > args.reach:
        raise SystemExit(f"it needs {after:.2f} bits for a letter, more than {args.reach:.2f}")


if __name__ == "__main__":
    main()
