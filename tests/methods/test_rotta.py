"""RoTTA against its equations, on one layer whose output is the logits."""

import math

import pytest
import torch

import medbn

from .conftest import Dense, small_model
from .test_cotta import CLASSES, OneLayer, stream


class Reference:
    """The teacher, the student, their averages and the memory, image by image."""

    def __init__(self, capacity, alpha, nu, lr):
        bn = OneLayer().bn
        affine, statistics = [bn.weight, bn.bias], [bn.running_mean, bn.running_var]
        self.teacher, self.student = ([p.detach().clone() for p in affine] for _ in range(2))
        self.teacher_average, self.student_average = ([s.clone() for s in statistics] for _ in range(2))
        self.memory = []  # of image, class, entropy and age
        self.capacity, self.alpha, self.nu, self.lr = capacity, alpha, nu, lr
        self.refused = self.replaced = 0

    def predict(self, parameters, statistics, x):
        mean, var = statistics
        return parameters[0] * (x - mean) / (var + 1e-5).sqrt() + parameters[1]

    def score(self, entropy, age):
        return 1 / (1 + math.exp(-age / self.capacity)) + entropy / math.log(CLASSES)

    def offer(self, image, label, entropy):
        counts = [sum(m[1] == c for m in self.memory) for c in range(CLASSES)]
        if counts[label] >= self.capacity / CLASSES:
            rivals = [m for m in self.memory if m[1] == label]
        elif len(self.memory) < self.capacity:
            rivals = []
        else:
            rivals = [m for m in self.memory if counts[m[1]] == max(counts)]
        if rivals:
            worst = max(rivals, key=lambda m: self.score(*m[2:]))
            if self.score(*worst[2:]) <= self.score(entropy, 0):
                self.refused += 1
                return
            self.memory = [m for m in self.memory if m is not worst]
            self.replaced += 1
        self.memory.append([image, label, entropy, 0])

    def learn(self, augment):
        images = torch.stack([m[0] for m in self.memory])
        averages = []
        for average, x in ((self.teacher_average, images), (self.student_average, augment(images))):
            batch = (x.mean(0), x.var(0, correction=0))
            averages.append(
                [(1 - self.alpha) * old + self.alpha * new for old, new in zip(average, batch, strict=True)]
            )
        target = self.predict(self.teacher, averages[0], images).softmax(1)
        student = [p.requires_grad_() for p in self.student]
        log_p = self.predict(student, averages[1], augment(images)).log_softmax(1)
        weight = [1 / (1 + math.exp(m[3] / self.capacity)) for m in self.memory]
        loss = -sum(w * (q * p).sum() for w, q, p in zip(weight, target, log_p, strict=True)) / len(weight)
        gradients = torch.autograd.grad(loss, student)
        self.student = [(p - self.lr * g).detach() for p, g in zip(student, gradients, strict=True)]
        self.teacher = [(1 - self.nu) * t + self.nu * s for t, s in zip(self.teacher, self.student, strict=True)]
        self.teacher_average, self.student_average = averages

    def serve(self, batch, frequency, augment):
        batch = batch.flatten(1)
        logits = self.predict(self.teacher, self.teacher_average, batch)
        for image, row in zip(batch, logits, strict=True):
            p = row.softmax(0)
            self.offer(image, int(p.argmax()), -(p * p.log()).sum().item())
            for m in self.memory:
                m[3] += 1
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen % frequency == 0:
                self.learn(augment)
        return logits


def test_rotta_by_its_equations():
    reference = Reference(capacity=8, alpha=0.3, nu=0.4, lr=0.5)
    options = {"capacity": 8, "frequency": 4, "momentum": 0.3, "average": 0.6, "optimizer": "sgd", "lr": 0.5}
    tta = medbn.adapt(OneLayer(), "rotta", "mean", augment=lambda x, generator: x.sign() * x.abs() ** 0.7, **options)
    for x in stream(8):
        expected = reference.serve(x, 4, lambda images: images.sign() * images.abs() ** 0.7)
        torch.testing.assert_close(tta(x), expected, rtol=1e-4, atol=1e-4)
        for name, t, s in zip(("bn.weight", "bn.bias"), reference.teacher, reference.student, strict=True):
            torch.testing.assert_close(tta.learned[name].detach(), t, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(tta.memory["student"][name], s, rtol=1e-4, atol=1e-5)
        layer = tta.layers["bn"]
        torch.testing.assert_close([layer.ema_mean, layer.ema_var], reference.teacher_average, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.memory["averages"]["bn"], reference.student_average, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tta.memory["images"]["0"].flatten(1), torch.stack([m[0] for m in reference.memory]))
        assert tta.memory["classes"] == [m[1] for m in reference.memory]
        assert tta.memory["ages"] == [m[3] for m in reference.memory]
    assert reference.refused > 0
    assert reference.replaced > 0


def test_a_batch_is_predicted_without_its_own_images_and_before_the_steps_in_it(batches):
    tta = medbn.adapt(small_model(), "rotta", capacity=4, frequency=4)
    alone = torch.cat([medbn.adapt(small_model(), "rotta", frequency=100)(x[None]) for x in batches[0]])
    torch.testing.assert_close(tta(batches[0]), alone)
    tta(batches[0])  # steps after the 4th, 8th and 12th image
    assert {float(s["step"]) for s in tta.optimizer.state.values()} == {6.0}


def test_classes_of_dense_outputs_are_balanced(batches):
    tta = medbn.adapt(Dense(small_model()), "rotta", "mean", capacity=10, frequency=12)
    for x in batches:
        tta(x)
    assert max(map(tta.memory["classes"].count, range(10))) == 1
    assert {float(s["step"]) for s in tta.optimizer.state.values()} == {5.0}


@pytest.mark.parametrize("option", [{"capacity": 0}, {"frequency": 0}, {"average": 2.0}, {"momentum": -1.0}])
def test_what_rotta_cannot_do_is_said(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        medbn.adapt(OneLayer(), "rotta", **option)


def test_a_file_with_a_damaged_memory_is_refused():
    tta = medbn.adapt(OneLayer(), "rotta", "mean", frequency=4)
    tta(stream(1)[0])
    for entry, value in (
        ("ages", [1]),
        ("entropies", [-1.0] * len(tta.memory["classes"])),
        ("seen", -1),
        ("averages", {}),
    ):
        snapshot = tta.snapshot()
        snapshot["memory"][entry] = value
        with pytest.raises(ValueError, match=r"age|entrop|seen|averages"):
            tta.restore(snapshot)
