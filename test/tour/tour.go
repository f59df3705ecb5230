// Package tour keeps docs/tour.md true: the path of each CRI call through the code, the
// state machines and what is written to disk. It has tests only.
//
// testdata/outlines.txt describes important calls function by function, with a phrase
// for each. The tests resolve them in the type-checked tree (graph_test.go), and fail
// for a function that is gone, that only forwards its arguments, or that none of those
// above it leads to. All other calls are described as far as the code alone permits.
// After an intended change:
//
//	go test -tags seccomp,containers_image_openpgp,nri_no_wasm,grpcnotrace ./test/tour -update
package tour
