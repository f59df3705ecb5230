// Package archtest keeps the architecture: which package may import what, where
// a few names may occur at all, and that each direct dependency has its reason
// in docs/dependencies.md. It has tests only.
//
//	    cmd/crispd ─────────────► config                 cmd/crisp
//	        │   (also constructs   (leaf; imported          │
//	        │    each package)      only by cmd)            ▼
//	        │                                           apiserver
//	        │                                               │ never the other way
//	        ▼                                               ▼
//	     server ─────► server/spec (pure)                 agent
//	 ┌──────┼───────┬─────────┬───────────┐                 │ CRI over a unix socket,
//	 ▼      ▼       ▼         ▼           ▼                 │ never a Go import of
//	oci  network  image  streaming   checkpoint             │ server, oci, …
//	 │      │       │         │           │                 │
//	 └──────┴───────┴────┬────┴───────────┘                 │
//	                     ▼                                  ▼
//	                internal/*  ◄───────────────────────────┘
//
// Three products share the tree: the runtime, the agent, and the API server above the agent, which
// makes a cluster of one of it. The runtime imports neither of the others, and the agent not the
// API server. The five siblings never import each other: what one produces and another
// needs travels through server as plain data.
//
// order_test.go has the order of packages inside of agent, apiserver, image, oci and server,
// which of them are pure, and that a file of server holds one RPC.
package archtest
