#!/usr/bin/env bash
# Installs the files that packaging/files lists.
#
#   install.sh BINDIR DESTDIR PREFIX
set -euo pipefail
bin=$1 destdir=$2 prefix=$3
cd "$(dirname "$0")/.."

while read -r mode dest source; do
	case $mode in '' | '#'*) continue ;; esac
	source=${source//@BIN@/$bin}
	case $dest in
	/*) target=$destdir$dest ;;
	*) target=$destdir$prefix/$dest ;;
	esac
	[[ $dest == /* && -e $target ]] && continue
	case $source in
	!*)
		install -D -m "$mode" /dev/null "$target"
		${source#!} >"$target"
		;;
	*.in)
		install -D -m "$mode" /dev/null "$target"
		sed "s|@PREFIX@|$prefix|g" "$source" >"$target"
		;;
	*)
		for file in $source; do
			[ -e "$file" ] || { echo "install: there is no $file" >&2; exit 1; }
			case $target in
			*/) install -D -m "$mode" "$file" "$target$(basename "$file")" ;;
			*) install -D -m "$mode" "$file" "$target" ;;
			esac
		done
		;;
	esac
done <packaging/files
