"""The files of Linux that tell of CPUs and NUMA nodes, of machines made up."""

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def hexadecimal(cpus):
    return f"{sum(1 << cpu for cpu in cpus):08x}"


def cpu_files(cpu, core, package, package_id=0, core_id=0):
    folder = f"{CPU}/cpu{cpu}/topology"
    return {
        f"{folder}/core_cpus": hexadecimal(core),
        f"{folder}/core_id": str(core_id),
        f"{folder}/package_cpus": hexadecimal(package),
        f"{folder}/physical_package_id": str(package_id),
    }


def two_packages():
    """Two packages of two cores with two threads each, a NUMA node in each."""
    files = {f"{CPU}/online": "0-7", f"{NODE}/online": "0-1"}
    for cpu in range(8):
        package = cpu // 2 % 2
        files |= cpu_files(
            cpu,
            core=(cpu % 4, cpu % 4 + 4),
            package=[x for x in range(8) if x // 2 % 2 == package],
            package_id=package,
            core_id=cpu % 2,
        )
        files[f"{CPU}/cpu{cpu}/cache/index0/level"] = "1"
        files[f"{CPU}/cpu{cpu}/cache/index0/type"] = "Data"
        files[f"{CPU}/cpu{cpu}/cache/index0/size"] = "32K"
        files[f"{CPU}/cpu{cpu}/cache/index0/shared_cpu_map"] = hexadecimal(
            (cpu % 4, cpu % 4 + 4)
        )
    for node, cpus in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
        files[f"{NODE}/node{node}/cpumap"] = hexadecimal(cpus)
        files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:  1024 kB"
        files[f"{NODE}/node{node}/distance"] = "10 21" if node == 0 else "21 10"
    return files


def cpus_of(parts):
    return [list(part.cpus) for part in parts]
