from __future__ import annotations

import numpy as np
import pytest

from .images import cifar_records


@pytest.fixture(scope="session")
def frost_photographs(tmp_path_factory: pytest.TempPathFactory):
    """A folder of five pictures under the names of the photographs of frost."""
    image = pytest.importorskip("PIL.Image")
    from medbn.data.corruptions.frost import FROST_FILES, synthetic_frost

    folder = tmp_path_factory.mktemp("frost")
    for number, name in enumerate(FROST_FILES):
        texture = synthetic_frost(np.random.default_rng(number), 300, 400 + 20 * number)
        image.fromarray(texture.transpose(1, 2, 0).astype(np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def root(tmp_path):
    """A data folder with small files in the layouts of CIFAR-10 and CIFAR-100."""
    ten, hundred = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-100-binary"
    ten.mkdir()
    hundred.mkdir()
    for part in range(1, 6):
        cifar_records(20, 1, 10, part).tofile(ten / f"data_batch_{part}.bin")
    cifar_records(30, 1, 10).tofile(ten / "test_batch.bin")
    for split in ("train", "test"):
        cifar_records(25, 2, 100).tofile(hundred / f"{split}.bin")
    (hundred / "fine_label_names.txt").write_text("\n".join(f"kind{n}" for n in range(100)) + "\n\n")
    return tmp_path
