"""Recipes: named, from files, changed by words, and checked."""

from importlib import resources

import pytest

from vitreous.base.errors import ConfigError
from vitreous.training.recipe import Recipe, parse_overrides

NAMES = sorted(p.name.removesuffix(".toml") for p in (resources.files("vitreous") / "recipes").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_named_recipes_load_and_survive_a_round_trip(name, tmp_path):
    recipe = Recipe.load(name)
    (tmp_path / "copy.toml").write_text(recipe.to_toml())
    assert Recipe.load(tmp_path / "copy.toml") == recipe


def test_finetune_is_the_official_recipe():
    recipe = Recipe.load("finetune")
    official = Recipe(accum_steps=8, dropout_rate=0.0, attention_dropout_rate=0.0, stochastic_depth_rate=0.0)
    assert recipe == official
    assert (recipe.optimizer, recipe.momentum, recipe.grad_clip, recipe.decay) == ("sgd", 0.9, 1.0, "cosine")
    assert (recipe.batch_size, recipe.base_lr, recipe.steps, recipe.warmup_steps) == (512, 0.03, 500, 100)


def test_overrides_are_read_as_toml_or_words():
    values = parse_overrides(["base_lr=1e-3", "augment=rand", "crop_area=[0.2, 1]", "flip = false", "image_size=none"])
    assert parse_overrides(["augment=none"]) == {"augment": "none"}  # a word of its own, there
    assert parse_overrides(["image_size=None"]) == {"image_size": None}
    assert values == {"base_lr": 1e-3, "augment": "rand", "crop_area": [0.2, 1], "flip": False, "image_size": None}
    recipe = Recipe.load("finetune", **values)
    assert recipe.crop_area == (0.2, 1)


def test_fewer_steps_scale_the_warmup():
    assert Recipe.load("finetune", steps=50).warmup_steps == 10
    assert Recipe.load("finetune", steps=50, warmup_steps=7).warmup_steps == 7


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: parse_overrides(["base_rl=1"]), "did you mean 'base_lr'"),
        (lambda: parse_overrides(["base_lr"]), "key=value"),
        (lambda: Recipe.load("finetun"), "did you mean 'finetune'"),
        (lambda: Recipe.load("nowhere.toml"), "nowhere.toml: No such file"),
        (lambda: Recipe(steps=10, warmup_steps=10), "less than steps"),
        (lambda: Recipe(batch_size=10, accum_steps=3), "divisible"),
        (lambda: Recipe(optimizer="adam"), "sgd, adamw"),
        (lambda: Recipe(crop_area=(0.0, 1.0)), "crop_area"),
        (lambda: Recipe(label_smoothing=1.0), "label_smoothing"),
        (lambda: Recipe(steps=1.5), "steps"),
        (lambda: Recipe(loss="sigmoide"), "loss must be one of softmax, sigmoid"),
        (lambda: Recipe(layer_decay=0.0), r"layer_decay must be in \(0, 1\]"),
        (lambda: Recipe(ema_decay=1.0), r"ema_decay must be in \[0, 1\)"),
        (lambda: Recipe(betas=(0.9, 1.0)), "betas must be two numbers"),
        (lambda: Recipe(freeze="head"), "freeze must be a list of parts"),
        (lambda: Recipe(grad_checkpointing=1), "grad_checkpointing must be true or false"),
        (lambda: Recipe(representation_size=0), "representation_size"),
        (lambda: parse_overrides(["ema_decey=0.9"]), "did you mean 'ema_decay'"),
    ],
)
def test_mistakes_are_named_with_the_way_out(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_file_that_is_not_toml(tmp_path):
    (tmp_path / "bad.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        Recipe.load(tmp_path / "bad.toml")
    (tmp_path / "typo.toml").write_text("stepz = 3")
    with pytest.raises(ConfigError, match=r"typo\.toml: .*did you mean 'steps'"):
        Recipe.load(tmp_path / "typo.toml")
    (tmp_path / "kind.toml").write_text('base_lr = "fast"')
    with pytest.raises(ConfigError, match=r"kind\.toml"):
        Recipe.load(tmp_path / "kind.toml")


def test_levels_of_augreg_bring_their_mixup():
    assert [Recipe(augment=level).mixup for level in ("none", "rand", "light1", "light2", "medium2", "strong2")] == [
        *(0.0, 0.0, 0.0),
        *(0.2, 0.5, 0.8),
    ]
    assert Recipe(augment="strong2", mixup_alpha=0.0).mixup == 0.0
    assert Recipe(mixup_alpha=0.3).mixup == 0.3
    for wrong, says in (
        ({"augment": "heavy"}, "light1"),
        ({"erasing": 2.0}, "erasing"),
        ({"mixup_alpha": -1}, "mixup"),
    ):
        with pytest.raises(ConfigError, match=says):
            Recipe(**wrong)
    with pytest.raises(ConfigError, match="augment_magnitude must be 0 to 30, got 31"):
        Recipe(augment_magnitude=31)
