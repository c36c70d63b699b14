import pytest
import torch

from .pool import Pool


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    """Four processes, started once; groups of two, three and four are made of them."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    pool = Pool(4, tmp_path_factory.mktemp("group"))
    yield pool
    pool.close()
