import copy

import pytest
import torch

import medbn


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v3_small", "googlenet"])
def test_torchvision_models_convert_run_and_revert(name):
    models = pytest.importorskip("torchvision.models")
    model = models.get_model(name, weights=None).cuda().eval()
    original, x = copy.deepcopy(model), torch.randn(8, 3, 96, 96, device="cuda")
    count = sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    with torch.no_grad():
        expected = original(x)
        medbn.convert(model, "median", "source")
        assert sum(isinstance(m, medbn.RobustBatchNorm2d) for m in model.modules()) == count > 0
        torch.testing.assert_close(model(x), expected)
        medbn.convert(model, "image_median")
        x[3] = torch.nan
        y = model(x)
    assert y.isfinite().all(dim=1).tolist() == [i != 3 for i in range(8)]
    medbn.convert(model, "median")
    model(x)[:3].square().sum().backward()
    gradients = [m.weight.grad for m in model.modules() if isinstance(m, medbn.RobustBatchNorm2d)]
    assert all(g.isfinite().all() for g in gradients if g is not None)  # heads for training alone have none
    assert sum(g is not None for g in gradients) > count / 2
    medbn.revert(model)
    with torch.no_grad():
        assert torch.equal(model(x[:3]), original(x[:3]))
