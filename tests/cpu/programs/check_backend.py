"""A test file for a backend, in the style of public ones."""

import unittest

import sglang as sgl
from sglang.test import test_programs
from sglang.test.test_utils import DEFAULT_MODEL_NAME_FOR_TEST, CustomTestCase


class TestBackend(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        cls.backend = sgl.Runtime(model_path=DEFAULT_MODEL_NAME_FOR_TEST, base_gpu_id=0)
        sgl.set_default_backend(cls.backend)

    @classmethod
    def tearDownClass(cls):
        cls.backend.shutdown()

    def test_select(self):
        test_programs.test_select(check_answer=False)

    def test_hellaswag_select(self):
        accuracy, latency = test_programs.test_hellaswag_select()
        self.assertIn(accuracy, (0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1))
        self.assertGreater(latency, 0)


for name in set(test_programs.__all__) - set(vars(TestBackend)):
    setattr(TestBackend, name, lambda self, name=name: getattr(test_programs, name)())

if __name__ == "__main__":
    unittest.main(verbosity=2)
