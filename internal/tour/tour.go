// Package tour keeps docs/tour.md true: the way of each CRI call through the code, the
// state machines and what is written to disk. It has tests only.
//
// testdata/outlines.txt has the calls that are told well, function by function, with a
// phrase for each. The tests resolve them in the type-checked tree (graph_test.go): a
// function that is gone, that only forwards its arguments, or that none of those above
// it leads to, fails. All other calls are told as far as the code alone can tell. After
// a change that is meant:
//
//	go test -tags seccomp,containers_image_openpgp,nri_no_wasm ./internal/tour -update
package tour
