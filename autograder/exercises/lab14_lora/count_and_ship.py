"""What LoRA fine-tuning trains, stores, sends and computes, from a model's shapes."""

from autograder.exercise import Formula, questions

TINY = {
    "token.weight": (50, 8),
    "position.weight": (12, 8),
    "token_mixer.weight": (8, 8),
    "blocks.0.norm.weight": (8,),
    "blocks.0.norm.bias": (8,),
    "blocks.0.query.weight": (8, 8),
    "blocks.0.query.bias": (8,),
    "blocks.0.value.weight": (8, 8),
    "blocks.0.value.bias": (8,),
    "blocks.0.ln.weight": (8,),
    "blocks.0.upscale.weight": (8, 12),
    "blocks.0.scale_up.weight": (12, 8),
    "blocks.0.up.weight": (32, 8),
    "blocks.0.up.bias": (32,),
    "blocks.0.down.weight": (8, 32),
    "blocks.0.down.bias": (8,),
    # Words of targets and of embeddings, elsewhere than second to last:
    "up.query.mix.weight": (8, 12),
    "token.project.weight": (8, 12),
    "encoder.position.weight": (9, 8),
    "blocks.0.gate.value": (12, 8),
    "norm.weight": (8,),
    "norm.bias": (8,),
    "head.weight": (50, 8),
}


def decoder(layers: int, width: int, kv: int, inner: int, vocabulary: int) -> dict[str, object]:
    """Shapes as in Llama: keys and values may be narrower, and there are no biases."""
    shapes: dict[str, object] = {"token.weight": (vocabulary, width)}
    for i in range(layers):
        block = {
            "norm_1": (width,),
            "attention.query": (width, width),
            "attention.key": (kv, width),
            "attention.value": (kv, width),
            "attention.out": (width, width),
            "norm_2": (width,),
            "mlp.gate": (inner, width),
            "mlp.up": (inner, width),
            "mlp.down": (width, inner),
        }
        shapes |= {f"blocks.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes | {"norm.weight": (width,), "head.weight": (vocabulary, width)}


EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "one block, square weights",
            (TINY, 2, ("query", "value"), 2, 100),
            (TINY, 13, ("query", "head"), 1, 7),
        ),
        questions(
            "one block, weights that are not square",
            (TINY, 4, ("up", "down"), 4, 96),
            (TINY, 5, ("query", "value", "scale_up"), 3, 50),
            (TINY, 1, ("down",), 8, 3),
        ),
        questions(
            "narrow keys and values",
            (decoder(2, 96, 32, 260, 1000), 8, ("query", "key", "value"), 6, 512),
        ),
    ),
    shown=lambda answer, question: (
        f"{answer}({len(question[0])} shapes, r={question[1]}, targets={list(question[2])}, "
        f"world_size={question[3]}, tokens={question[4]})"
    ),
)
