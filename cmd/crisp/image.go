package main

import (
	"fmt"
	"io"
	"os"

	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/server/loaderapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// runImage does "image load": it sends an archive to crispd by a service of
// crispd's own, since CRI has none for it.
func runImage(c *cli, args []string) error {
	var input string
	fs := c.flags("image")
	fs.StringVar(&input, "i", "", "`file` to load, an OCI or docker archive, plain or gzipped; - is standard input")
	fs.StringVar(&input, "input", "", "the same")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 || rest[0] != "load" || input == "" {
		return usageError("image load needs -i FILE")
	}
	archive := c.stdin
	if input != "-" {
		f, err := os.Open(input)
		if err != nil {
			return err
		}
		defer f.Close()
		archive = f
	}
	names, err := c.load(archive)
	if err != nil {
		return fmt.Errorf("load %s: %w", input, crix.Fault(err))
	}
	for _, name := range names {
		fmt.Fprintln(c.stdout, name)
	}
	return nil
}

func (c *cli) load(archive io.Reader) ([]string, error) {
	conn, err := grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return loaderapi.Load(c.ctx, conn, archive)
}
