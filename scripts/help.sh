# SPDX-License-Identifier: GPL-2.0
# Library of scripts (sourced, bash): if one of the arguments is -h or --help, prints the comment at the top of the
# script, and exits.
# shellcheck shell=bash

case " $* " in
*" -h "* | *" --help "*)
	sed -n '3,/^[^#]/{/^# shellcheck/d; s/^# \{0,1\}//p}' "$0"
	exit
	;;
esac
