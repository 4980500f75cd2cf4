// A message from standard input, sent by Go's own library: as the page says on ports 587 and 8587,
// and over a connection of TLS on port 465.
package main

import (
	"crypto/tls"
	"io"
	"log"
	"net/smtp"
	"os"
)

func main() {
	message, err := io.ReadAll(os.Stdin)
	if err == nil && os.Args[1] == "tls" {
		err = overTLS(os.Args[2], message)
	} else if err == nil {
		err = recipe(message)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func recipe(message []byte) error {
	RECIPE
	return err
}

func overTLS(address string, message []byte) error {
	connection, err := tls.Dial("tcp", address, nil)
	if err != nil {
		return err
	}
	client, err := smtp.NewClient(connection, "localhost")
	if err != nil {
		return err
	}
	auth := smtp.PlainAuth("", "go", os.Getenv("MAIL_KEY"), "localhost")
	if err := client.Auth(auth); err != nil {
		return err
	}
	if err := client.Mail("orders@example.com"); err != nil {
		return err
	}
	if err := client.Rcpt("ada@example.net"); err != nil {
		return err
	}
	writer, err := client.Data()
	if err != nil {
		return err
	}
	if _, err := writer.Write(message); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return client.Quit()
}
