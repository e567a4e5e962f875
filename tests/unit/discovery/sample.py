"""Instances to test with."""

from __future__ import annotations

from discovery.instance import Instance, ModelFacts, Readiness, TensorFacts

ETR = ModelFacts(
    name="etr",
    version="1",
    idempotent=True,
    inputs=(TensorFacts("dense", "FP32", (-1, 24)),),
    outputs=(TensorFacts("minutes", "FP32", (-1,)),),
)


def instance(node_id: str = "a", epoch: int = 1, readiness: Readiness = Readiness.READY) -> Instance:
    return Instance(
        node_id=node_id,
        node_epoch=epoch,
        host_id="host",
        readiness=readiness,
        local=f"/run/{node_id}.sock",
        rpc="127.0.0.1:7000",
        rpc_tls=False,
        devices=("cpu:0",),
        models=(ETR,),
    )
