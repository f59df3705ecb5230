// The name is that of the module that this one replaces: see the package comment.
module github.com/seccomp/libseccomp-golang

go 1.26.0

require github.com/seccomp/libseccomp-golang/upstream v0.12.0

replace github.com/seccomp/libseccomp-golang/upstream => github.com/seccomp/libseccomp-golang v0.12.0
