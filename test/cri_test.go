package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (n *node) runtime() cri.RuntimeServiceClient { return cri.NewRuntimeServiceClient(n.conn) }

func (n *node) images() cri.ImageServiceClient { return cri.NewImageServiceClient(n.conn) }

// callTimeout is the kubelet's timeout for most calls.
const callTimeout = 2 * time.Minute

// imageCmd is:
//
//	image load NAME            testbin's image from an archive, under that name
//	image pull REF [NAMESPACE | USER PASSWORD]
//	image rm REF | status REF | ls
func (n *node) imageCmd(ts *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	switch verb, args := args[0], args[1:]; {
	case verb == "load" && len(args) == 0:
		return ts.Exec(filepath.Join(n.binaries.dir, "crisp"), "image", "load", "-i", n.archive)
	case verb == "pull" && len(args) >= 1 && len(args) <= 3:
		req := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: args[0]}}
		if len(args) == 2 {
			req.SandboxConfig = &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Namespace: args[1]}}
		}
		if len(args) == 3 {
			req.Auth = &cri.AuthConfig{Username: args[1], Password: args[2]}
		}
		resp, err := n.images().PullImage(ctx, req)
		if err != nil {
			return err
		}
		fmt.Fprintln(ts.Stdout(), resp.ImageRef)
		return nil
	case verb == "rm" && len(args) == 1:
		_, err := n.images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: args[0]}})
		return err
	case verb == "status" && len(args) == 1:
		resp, err := n.images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: args[0]}})
		if err != nil {
			return err
		}
		if resp.Image == nil {
			return fmt.Errorf("no image %s", args[0])
		}
		printImage(ts, resp.Image)
		return nil
	case verb == "ls" && len(args) == 0:
		resp, err := n.images().ListImages(ctx, &cri.ListImagesRequest{})
		if err != nil {
			return err
		}
		for _, i := range resp.Images {
			printImage(ts, i)
		}
		return nil
	}
	return errUsage
}

func printImage(ts *testscript.TestScript, i *cri.Image) {
	fmt.Fprintf(ts.Stdout(), "%s tags=%v digests=%v\n", i.Id, i.RepoTags, i.RepoDigests)
}

// merge merges a file of the script, in protobuf's JSON, into a config; bytes are base64 in
// it, and $WORK is the script's directory.
func (n *node) merge(config proto.Message, file string) error {
	text, err := os.ReadFile(filepath.Join(n.work, file))
	if err != nil {
		return err
	}
	more := config.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(bytes.ReplaceAll(text, []byte("$WORK"), []byte(n.work)), more); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	proto.Merge(config, more)
	return nil
}
