package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// commandLine is something with a command line that runs pods, such as podman. Its script of sh(1) has a function for
// each verb: version, pull, unpull, up, execute, down.
type commandLine struct{ name, script string }

func parseCommandLine(s string) (commandLine, error) {
	name, script, _ := strings.Cut(s, "=")
	if name == "" || !filepath.IsAbs(script) {
		return commandLine{}, fmt.Errorf("command line %q: want name=/path", s)
	}
	return commandLine{name, script}, nil
}

// do runs a verb, and returns what it prints and how long it took.
func (c commandLine) do(ctx context.Context, verb string) (string, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	start := time.Now()
	out, err := exec.CommandContext(ctx, "sh", "-e", "-c", `. "$0"; "$1"`, c.script, verb).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", c.name, verb, err, out)
	}
	return strings.TrimSpace(string(out)), time.Since(start), err
}

const commandsGroup = "One pod, by commands"

// turns has each command line do the verbs n times, and once before that, unmeasured.
func (b *bench) turns(ctx context.Context, n int, verbs ...string) {
	for round := range n + 1 {
		for _, i := range rand.Perm(len(b.commandLines)) {
			c := b.commandLines[i]
			if b.failed[c.name] || ctx.Err() != nil {
				continue
			}
			var failed error
			for _, verb := range verbs { // all of them, to leave no pod
				_, took, err := c.do(context.WithoutCancel(ctx), verb)
				failed = errors.Join(failed, err)
				if err == nil && round > 0 && verb != "unpull" {
					b.report.add(commandsGroup, verb, "ms", c.name, milliseconds(took))
				}
			}
			if failed != nil {
				b.fail(c.name, "commands", failed)
			}
		}
	}
}

// commands measures command lines.
func (b *bench) commands(ctx context.Context) {
	b.turns(ctx, b.pulls, "pull", "unpull")
	b.turns(ctx, b.rounds, "up", "execute", "down")
}
