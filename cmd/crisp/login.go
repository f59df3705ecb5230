package main

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// defaultAuthFile is the default of crispd's auth_file, with the credentials of the node.
const defaultAuthFile = "/etc/containers/auth.json"

// An authFile is a containers-auth.json(5). Unknown keys are preserved.
type authFile map[string]json.RawMessage

func readAuth(path string) (authFile, map[string]map[string]any, error) {
	file, auths := authFile{}, map[string]map[string]any{}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, auths, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err == nil && file["auths"] != nil {
		err = json.Unmarshal(file["auths"], &auths)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, auths, nil
}

func (a authFile) write(path string, auths map[string]map[string]any) error {
	var err error
	if a["auths"], err = json.Marshal(auths); err != nil {
		return err
	}
	data, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}

func (c *cli) authFileFlag(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "authfile", cmp.Or(os.Getenv("REGISTRY_AUTH_FILE"), c.places().authFile), "credentials `file`")
}

// loginCommand stores credentials in crispd's auth_file after the registry has accepted them.
func loginCommand(c *cli) *cobra.Command {
	var path, user, password string
	var fromStdin bool
	cmd := &cobra.Command{Use: "login [-u USER] [-p PASSWORD | --password-stdin] REGISTRY", Args: takes(1, 1, "login takes one registry"), Short: "store a registry's credentials, for pulls of this node"}
	flags := cmd.Flags()
	c.authFileFlag(flags, &path)
	flags.StringVarP(&user, "username", "u", "", "user `name`")
	flags.StringVarP(&password, "password", "p", "", "`password`; all users of this machine can see it for a moment")
	flags.BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	return runs(cmd, func(rest []string) error {
		in := bufio.NewReader(c.stdin)
		if user == "" && !fromStdin {
			user = c.askLine(in, "Username: ")
		}
		if fromStdin {
			data, err := io.ReadAll(io.LimitReader(in, 1<<16))
			if err != nil {
				return err
			}
			password = strings.TrimRight(string(data), "\r\n")
		} else if f := terminal(c.stdin); password == "" && f != nil {
			fmt.Fprint(c.stderr, "Password: ")
			secret, _ := term.ReadPassword(int(f.Fd())) // an empty password is rejected below
			fmt.Fprintln(c.stderr)
			password = string(secret)
		} else if password == "" {
			password = c.askLine(in, "Password: ")
		}
		if user == "" || password == "" {
			return usageError("login needs a user's name and a password")
		}
		registry := registryOf(rest[0])
		if err := c.checkLogin(registry, user, password); err != nil {
			return fmt.Errorf("login to %s: %w", registry, err)
		}
		file, auths, err := readAuth(path)
		if err != nil {
			return err
		}
		auths[registry] = map[string]any{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
		if err := file.write(path, auths); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.stdout, "%s: credentials kept in %s\n", registry, path)
		return err
	})
}

// logoutCommand removes credentials.
func logoutCommand(c *cli) *cobra.Command {
	var path string
	var every bool
	cmd := &cobra.Command{Use: "logout REGISTRY | --all", Short: "remove a registry's credentials"}
	flags := cmd.Flags()
	c.authFileFlag(flags, &path)
	flags.BoolVarP(&every, "all", "a", false, "of all registries")
	return runs(cmd, func(rest []string) error {
		if every == (len(rest) == 1) || len(rest) > 1 {
			return usageError("logout takes one registry, or --all")
		}
		file, auths, err := readAuth(path)
		if err != nil {
			return err
		}
		if every {
			clear(auths)
		} else if registry := registryOf(rest[0]); auths[registry] == nil {
			return fault.NotFound.Errorf("%s has no credentials of %s", path, registry)
		} else {
			delete(auths, registry)
		}
		return file.write(path, auths)
	})
}

// askLine prompts the user; the end of the input is an empty answer.
func (c *cli) askLine(in *bufio.Reader, question string) string {
	fmt.Fprint(c.stderr, question)
	line, _ := in.ReadString('\n')
	return strings.TrimRight(line, "\r\n")
}

// registryOf returns the key of an address's credentials.
func registryOf(text string) string {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "https://"), "http://")
	return strings.TrimSuffix(text, "/")
}

// checkLogin asks the registry whether it accepts the credentials, by the registry's API: directly,
// or for a token of the realm that the registry names. It sends nothing without TLS except to this
// machine.
func (c *cli) checkLogin(registry, user, password string) error {
	host, _, _ := strings.Cut(registry, "/")
	if host == "docker.io" {
		host = "registry-1.docker.io"
	}
	client := &http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get("https://" + host + "/v2/")
	if err != nil && onThisMachine(host) {
		resp, err = client.Get("http://" + host + "/v2/")
	}
	if err != nil {
		return fault.Unavailable.Errorf("%v", err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil // it requires none
	}
	to := resp.Request.URL
	challenge := resp.Header.Get("WWW-Authenticate")
	if strings.HasPrefix(strings.ToLower(challenge), "bearer ") {
		fields := map[string]string{}
		for _, m := range challengeField.FindAllStringSubmatch(challenge, -1) {
			fields[strings.ToLower(m[1])] = m[2]
		}
		realm, err := url.Parse(fields["realm"])
		if err != nil || realm.Scheme != "https" && !onThisMachine(realm.Host) {
			return fmt.Errorf("the registry's realm %q is not one to send a password to", fields["realm"])
		}
		realm.RawQuery = url.Values{"service": {fields["service"]}, "account": {user}}.Encode()
		to = realm
	}
	req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	req.SetBasicAuth(user, password)
	if resp, err = client.Do(req); err != nil {
		return fault.Unavailable.Errorf("%v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry does not take the credentials: %s", resp.Status)
	}
	return nil
}

var challengeField = regexp.MustCompile(`(\w+)="([^"]*)"`)

// onThisMachine reports whether a host is a loopback address.
func onThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
