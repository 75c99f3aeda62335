# SPDX-License-Identifier: GPL-2.0
"""Attribution of an eviction from the server's log."""

from lustrefs.testbed import for_want_of_an_ni

NO_NI = "[ 1044.746] LNetError: 486:0:(lib-move.c:2157:lnet_handle_find_routed_path()) peer 10.0.0.1@o2ib has no available nets\n"
NOT_SENT = (
    "[ 1044.763] Lustre: 486:0:(client.c:2497:ptlrpc_expire_one_request()) @@@ Request sent has failed due to network error: "
    "[sent 1/real 1]  req@0 x1/t0(0) o104->MGS@10.0.0.1@o2ib:15/16 lens 328/224\n"
)
EVICTED = (
    "[ 1201.092] LustreError: 463:0:(ldlm_lockd.c:251:expired_lock_main()) ### lock callback timer expired after 151s: "
    "evicting client at 10.0.0.1@o2ib  ns: MGS lock: 0/0xb2 lrc: 3/0,0\n"
)


def test_a_callback_that_lnet_did_not_take():
    assert for_want_of_an_ni(NO_NI + NOT_SENT + EVICTED) == 1


def test_one_that_was_sent_is_the_drivers():
    assert for_want_of_an_ni(NOT_SENT + EVICTED) == 0
    assert for_want_of_an_ni(NO_NI.replace("486:", "487:") + NOT_SENT + EVICTED) == 0


def test_one_of_another_time_or_target():
    assert for_want_of_an_ni(NO_NI + NOT_SENT + EVICTED.replace("1201", "1301")) == 0
    assert for_want_of_an_ni(NO_NI + NOT_SENT + EVICTED.replace("MGS", "filter-scratch-OST0000_UUID")) == 0
    ost = NOT_SENT.replace("MGS", "scratch-OST0000")
    assert for_want_of_an_ni(NO_NI + ost + EVICTED.replace("MGS", "filter-scratch-OST0000_UUID")) == 1


def test_a_callback_of_an_earlier_row():
    assert for_want_of_an_ni(EVICTED, NO_NI + NOT_SENT) == 1
    assert for_want_of_an_ni("", NO_NI + NOT_SENT + EVICTED) == 0
    assert for_want_of_an_ni(NO_NI + NOT_SENT, EVICTED) == 0
