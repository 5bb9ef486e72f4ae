"""Configures hatchling to build a wheel for one processor and any Python."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        # For any Linux; auditwheel determines the exact platform.
        build_data["tag"] = "py3-none-linux_" + os.environ["LIBNCCL_ARCH"]
