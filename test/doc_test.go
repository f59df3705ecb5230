// Package test runs crisp as its users do: crispd, the executor and the agent as processes,
// driven by scripts (script/*.txtar) through CRI and the command line.
package test
