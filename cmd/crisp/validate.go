package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/crisp-cri/crisp/agent/manifest"
)

func runValidate(c *cli, args []string) error {
	var input string
	fs := c.flags("validate")
	fs.StringVar(&input, "f", "", "`file` of manifests; - is standard input")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if input == "" || len(rest) > 0 {
		return usageError("validate needs -f FILE")
	}
	var data []byte
	if input == "-" {
		data, err = io.ReadAll(c.stdin)
	} else {
		data, err = os.ReadFile(input)
	}
	if err != nil {
		return err
	}
	objects, _, err := manifest.Read(input, data, manifest.Options{})
	if errs, ok := errors.AsType[manifest.Errors](err); ok {
		fmt.Fprintln(c.stderr, errs)
		return &exitError{code: exitInvalid}
	}
	for _, o := range objects {
		fmt.Fprintf(c.stdout, "%s: %s is valid\n", input, manifest.Key(o))
	}
	return err
}
