"""Scalars for TensorBoard: where they cannot be written."""

import pytest

from tfctr.report.scalars import Scalars, has_tensorboard


@pytest.mark.skipif(not has_tensorboard(), reason="there is no TensorBoard")
def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    (tmp_path / "tensorboard").write_text("x")
    message = "need a directory that can be written to. Received: '.*/tensorboard' \\("
    with pytest.raises(ValueError, match=message):
        Scalars(tmp_path)
