"""The few kernels of ours, as PTX, which every driver compiles for its card: one that is checked, others that break.

They need no compiler and no library. The checked one proves a card before it serves; the others are what `--inject`
breaks a node with. Nothing here launches them: `workers/cuda/driver.py` does. Read `workers/cuda/faults.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import Final

PROBE_COUNT: Final = 256
_FACTOR: Final = 2654435761
"""Knuth's multiplier for 32 bits: each thread's answer differs in all of its bits from its neighbour's."""


def expected_probe() -> list[int]:
    """What `probe` leaves in memory, thread by thread."""
    return [(number * _FACTOR + 1) & 0xFFFFFFFF for number in range(PROBE_COUNT)]


# sm_75 is the oldest card that CUDA 13 knows; a driver compiles the text for any newer one.
PROGRAM: Final = b"""
.version 7.0
.target sm_75
.address_size 64

.extern .func __assertfail(
    .param .b64 text, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 width);
.global .align 1 .b8 injected[9] = {105, 110, 106, 101, 99, 116, 101, 100, 0};

.visible .entry probe(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r1, 2654435761;
    add.u32 %r2, %r2, 1;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}

.visible .entry illegal_address()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry misaligned()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, injected;
    or.b64 %rd1, %rd1, 1;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry trap()
{
    trap;
    ret;
}

.visible .entry assert()
{
    .reg .b64 %rd<3>;
    mov.u64 %rd1, injected;
    cvta.global.u64 %rd1, %rd1;
    mov.u64 %rd2, 1;
    {
        .param .b64 p0;
        .param .b64 p1;
        .param .b32 p2;
        .param .b64 p3;
        .param .b64 p4;
        st.param.b64 [p0], %rd1;
        st.param.b64 [p1], %rd1;
        st.param.b32 [p2], 1;
        st.param.b64 [p3], %rd1;
        st.param.b64 [p4], %rd2;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }
    ret;
}

.visible .entry hang(.param .u64 flag)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [flag];
    cvta.to.global.u64 %rd1, %rd1;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
\x00"""
