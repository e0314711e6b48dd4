/* A server that takes a client's login over TLS as PostgreSQL does, and answers its first statement with TLS records that have no data,
 * without end. With a third argument it asks for that number of iterations of SCRAM instead, in records of one byte; or, if this is
 * "renegotiate", for another handshake of TLS 1.2 and then for a password.
 * Arguments: a certificate, and its key. Prints its port. Ends when its standard input does. */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* In seconds. */
#define RESERVE 8
#define RENEGOTIATE "renegotiate"

static const char *const SETTINGS[][2] = {
    {"server_version", "15.1"},      {"server_encoding", "UTF8"},  {"client_encoding", "UTF8"},
    {"integer_datetimes", "on"},     {"standard_conforming_strings", "on"},
    {"DateStyle", "ISO, MDY"},       {"IntervalStyle", "postgres"}, {"TimeZone", "UTC"},
    {"in_hot_standby", "off"},       {"default_transaction_read_only", "off"},
};

static void put(unsigned char **at, char kind, const void *body, size_t length) {
    unsigned total = htonl((unsigned)length + 4);
    *(*at)++ = (unsigned char)kind;
    memcpy(*at, &total, 4);
    memcpy(*at + 4, body, length);
    *at += 4 + length;
}

static void challenge(SSL *ssl, const char *iterations) {
    unsigned char first[4096], buffer[8192], *at = buffer;
    char body[4096] = "\0\0\0\x0b";
    if (!strcmp(iterations, RENEGOTIATE) && (SSL_renegotiate(ssl) != 1 || SSL_do_handshake(ssl) != 1))
        return;
    put(&at, 'R', "\0\0\0\x0aSCRAM-SHA-256\0", 19);
    SSL_write(ssl, buffer, (int)(at - buffer));
    int length = SSL_read(ssl, first, sizeof first - 1);
    if (length <= 0)
        return;
    first[length] = 0;
    /* The client's nonce is the end of its message, behind the name of the mechanism and a length. */
    char *nonce = NULL;
    for (int i = 0; i + 2 < length; i++)
        if (!memcmp(first + i, "r=", 2))
            nonce = (char *)first + i;
    if (!nonce)
        return;
    length = 4 + snprintf(body + 4, sizeof body - 4, "%sofTheServer,s=c2FsdHNhbHRzYWx0c2Fs,i=%s", nonce, iterations);
    at = buffer;
    put(&at, 'R', body, (size_t)length);
    for (unsigned char *byte = buffer; byte < at; byte++)
        if (SSL_write(ssl, byte, 1) != 1)
            return;
    SSL_read(ssl, buffer, sizeof buffer);
}

static void serve(SSL_CTX *context, int client, const char *iterations) {
    unsigned char buffer[4096], *at = buffer;
    /* An SSLRequest; a CancelRequest is longer, and nothing to answer. */
    if (read(client, buffer, 8) != 8 || buffer[3] != 8 || write(client, "S", 1) != 1)
        return;
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, client);
    if (SSL_accept(ssl) != 1 || SSL_read(ssl, buffer, sizeof buffer) <= 0)
        return;
    if (iterations) {
        challenge(ssl, iterations);
        return;
    }
    put(&at, 'R', "\0\0\0", 4);
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        char setting[200];
        int length = sprintf(setting, "%s%c%s", SETTINGS[i][0], 0, SETTINGS[i][1]);
        put(&at, 'S', setting, (size_t)length + 1);
    }
    put(&at, 'K', "\0\0\0\1\0\0\0\1", 8);
    put(&at, 'Z', "I", 1);
    SSL_write(ssl, buffer, (int)(at - buffer));
    if (SSL_read(ssl, buffer, sizeof buffer) <= 0)
        return;
    /* The client reads as fast as this makes records. With those of some seconds in reserve it always finds another one. */
    BIO *records = BIO_new(BIO_s_mem());
    SSL_set0_wbio(ssl, records);
    for (time_t begin = time(NULL) + RESERVE;;) {
        for (int i = 0; i < 2000 || time(NULL) < begin; i++)
            if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(ssl) != 1)
                return;
        char *at;
        for (long left = BIO_get_mem_data(records, &at), done; left > 0; left -= done, at += done)
            if ((done = write(client, at, (size_t)left)) <= 0)
                return;
        BIO_reset(records);
    }
}

int main(int count, char **arguments) {
    setpgid(0, 0);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (count == 4 && !strcmp(arguments[3], RENEGOTIATE))
        SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    else
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    if (count < 3 || count > 4 || SSL_CTX_use_certificate_file(context, arguments[1], SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, arguments[2], SSL_FILETYPE_PEM) != 1) {
        ERR_print_errors_fp(stderr);
        return 1;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 100) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        return 1;
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    struct pollfd waits[2] = {{.fd = 0, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
    while (poll(waits, 2, -1) > 0 && !waits[0].revents) {
        int client = accept(listener, NULL, NULL);
        if (client >= 0 && fork() == 0) {
            close(listener);
            serve(context, client, arguments[3]);
            _exit(0);
        }
        close(client);
    }
    kill(0, SIGTERM);
    return 0;
}
