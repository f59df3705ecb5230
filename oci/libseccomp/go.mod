// The name is that of the module in whose place this one is: see the package comment.
module github.com/seccomp/libseccomp-golang

go 1.26.0

require github.com/seccomp/libseccomp-golang/upstream v0.12.0

replace github.com/seccomp/libseccomp-golang/upstream => github.com/seccomp/libseccomp-golang v0.12.0
