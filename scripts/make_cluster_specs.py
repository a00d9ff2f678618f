#!/usr/bin/env python3
"""Writes specs/clusters/*.json from validation/hardware.json: one file a system, one a GPU.

usage: scripts/make_cluster_specs.py [--check]      (--check: exit 1 if a file on disk differs)

Datasheet figures come from hardware.json. What a datasheet does not say (latency, the cost of starting a collective, the
share of the datasheet rate that large messages reach) comes from published measurements, named in CONSTANTS by record.
"""
import json, os, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HARDWARE = json.load(open(os.path.join(ROOT, 'validation', 'hardware.json')))


def line(points):
    """Least squares of time = launch + steps * latency, microseconds."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    return my - slope * mx, slope


# 512-byte collectives over 2, 4, 8 GPUs of one node: (serial steps, us). A ring all-reduce takes 2(n-1) steps, an all-gather n-1.
SMALL = {
    'a100': ([(2, 9.98), (6, 14.54), (14, 22.57)], 'aic-nccl-a100_sxm-all-reduce-{2,4,8}'),
    'h100': ([(2, 6.18), (6, 9.46), (14, 15.59)], 'aic-nccl-h100_sxm-all-reduce-{2,4,8}'),
    'h200': ([(2, 6.05), (6, 9.49), (14, 16.01)], 'aic-nccl-h200_sxm-all-reduce-{2,4,8}'),
    'b200': ([(1, 8.84), (3, 11.15), (7, 16.06)], 'aic-nccl-b200_sxm-all-gather-{2,4,8}'),
    'gb200': ([(2, 10.9), (6, 15.63)], 'aic-nccl-gb200-all-reduce-{2,4}'),
}
# Bus bandwidth of the largest message over the datasheet rate of one direction.
NVLINK_SHARE = {
    'a100': (222.3 / 300, 'aic-nccl-a100_sxm-all-reduce-8: 222 of 300 GB/s'),
    'h100': (368 / 450, 'nccl-issue1455-h100-ring: 365 to 370 of 450 GB/s'),
    'h800': (160 / 200, 'DeepEP documentation, test system: about 160 of 200 GB/s'),
    'b200': (617.0 / 900, 'aic-nccl-b200_sxm-all-gather-8: 617 of 900 GB/s'),
    'gb200': (628.1 / 900, 'aic-nccl-gb200-all-reduce-4: 628 of 900 GB/s'),
}
NIC_SHARE = (192 / 200, 'nccl-issue812-dgxa100-8hdr: all-reduce at 192 of 8 x 25 GB/s')
# Relative to the above: what an algorithm or a collective reaches of the usable rate.
ALL_TO_ALL = (315.2 / 368, 'aic-nccl-h100_sxm-alltoall-8 (315 GB/s) over nccl-issue1455-h100-ring (368)')
# NVLS moves S(1 + 1/n) a port for a busbw of 2(n-1)/n S/t: at n = 8 busbw = 1.75/1.125 of the port's rate. 476 measured.
NVLS = (476 / (1.75 / 1.125 * 368), 'nccl-issue290-h100-1node: 476 GB/s bus bandwidth with NVLS')

# family: which small-message fit, which NVLink share, in-switch reduction
FAMILY = {
    'v100': ('a100', 'a100', False), 'a100': ('a100', 'a100', False), 'h100': ('h100', 'h100', True), 'h800': ('h100', 'h800', True),
    'h200': ('h200', 'h100', True), 'b200': ('b200', 'b200', True), 'b300': ('b200', 'b200', True), 'gb200': ('gb200', 'gb200', True),
    'gb300': ('gb200', 'gb200', True),
}
SCALE_OUT_LATENCY_US = HARDWARE['typical_latencies']['inter_rack_ib_us']
# The system's own GPU where it was sold with two memories: the larger. `published` values of the system entry win.
SYSTEM_GPU = {'dgx1-v100': 'v100-sxm2-32', 'dgx2-v100': 'v100-sxm3-32', 'dgx-a100-40': 'a100-sxm-40', 'dgx-a100-80': 'a100-sxm-80',
              'dgx-h100': 'h100-sxm', 'h800': 'h800-sxm', 'dgx-h200': 'h200-sxm', 'dgx-b200': 'b200-sxm', 'gb200-nvl72': 'gb200',
              'dgx-b300': 'b300-sxm', 'gb300-nvl72': 'gb300'}


def family_of(gpu):
    return max((f for f in FAMILY if gpu.startswith(f)), key=len)


def number(x):
    return repr(float(x)).removesuffix('.0')


def cluster(name, system, gpu_id, published):
    gpu = HARDWARE['gpus'][gpu_id]
    family = family_of(gpu_id)
    small, share, reduction = FAMILY[family]
    launch, latency = line(SMALL[small][0])
    borrowed = '' if small == family and share == family else f' ({small.upper()} and {share.upper()} figures stand in where {family.upper()} has none)'
    peak = {p: v for p, v in gpu['peak_tflops'].items() if v}
    fp32 = system.get('fp32_tflops') or {'h800': 67, 'dgx-b200': 80, 'dgx-b300': 80, 'gb200-nvl72': 80, 'gb300-nvl72': 80}.get(system['id'])
    if published:
        peak['fp16'] = system['fp16_tflops']
    if fp32:
        peak = {'fp32': fp32, **peak}
    domain = system.get('gpus_per_nvlink_domain', system['gpus_per_node'])
    up = {'cube_mesh': {}} if system['id'] == 'dgx1-v100' else {'nv_switch': {'gpus_per_domain': domain}}
    source = '; '.join([f"datasheets: validation/hardware.json, systems.{system['id']}, gpus.{gpu_id}",
                        f'launch and scale-up latency: line through {SMALL[small][1]}{borrowed}',
                        f'scale-up efficiency: {NVLINK_SHARE[share][1]}',
                        f'scale-out efficiency: {NIC_SHARE[1]}; its latency: typical_latencies.inter_rack_ib_us',
                        f'all_to_all: {ALL_TO_ALL[1]}'] + ([f'nvls: {NVLS[1]}'] if reduction else []))
    out = {'$schema': 'moeplan/cluster.schema.json', 'version': 1, 'name': name, 'source': source,
           'num_nodes': system.get('compute_trays', 1), 'gpus_per_node': system['gpus_per_node'],
           'topology': {'scale_up': up, 'scale_out': {'rail_fat_tree': {'num_nics': system['nics_per_node']}}},
           'scale_up': {'latency': f'{round(latency, 2)} us', 'bandwidth': f"{number(gpu['nvlink_gbps_per_dir'])} GB/s",
                        'efficiency': round(NVLINK_SHARE[share][0], 3)},
           'scale_out': {'latency': f'{SCALE_OUT_LATENCY_US} us', 'bandwidth': f"{system['nic_gbits']} Gb/s", 'efficiency': round(NIC_SHARE[0], 3)},
           'collective_launch': f'{round(launch, 1)} us', 'in_switch_reduction': reduction,
           'collective_efficiency': {**({'nvls': round(NVLS[0], 3)} if reduction else {}), 'all_to_all': round(ALL_TO_ALL[0], 3)},
           'gpu': {'name': gpu_id, 'memory': f"{number(gpu['hbm_gb'])} GB", 'memory_bandwidth': f"{number(gpu['hbm_gbps'])} GB/s",
                   'num_sms': gpu['sms'], 'l2': f"{number(gpu['l2_mb'])} MB", 'peak': {p: f'{number(v)} TFlop/s' for p, v in peak.items()}}}
    if system['id'] == 'dgx2-v100':      # 350 W parts; the GPU's own entry is the 450 W one
        out['gpu']['peak']['fp16'] = f"{number(system['fp16_tflops'] if published else gpu['peak_tflops']['fp16'])} TFlop/s"
    return json.dumps(out, indent=2) + '\n'


def main():
    check = '--check' in sys.argv[1:]
    systems = {s['id']: s for s in HARDWARE['systems']}
    files = {id: cluster(id, systems[id], gpu, True) for id, gpu in SYSTEM_GPU.items()}
    files.update({id: cluster(id, systems[g['system']], id, False) for id, g in HARDWARE['gpus'].items()})
    assert set(SYSTEM_GPU) == set(systems), 'a system without a GPU'
    folder, stale = os.path.join(ROOT, 'specs', 'clusters'), []
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        path = os.path.join(folder, name + '.json')
        if check:
            if not os.path.exists(path) or open(path).read() != text: stale.append(path)
        else:
            open(path, 'w').write(text)
    if stale: print('out of date: ' + ', '.join(stale)); return 1
    print(f"{len(files)} clusters {'are up to date' if check else 'written'}")
    return 0


if __name__ == '__main__':
    sys.exit(main())
