package lakewarden;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;

import org.apache.paimon.Changelog;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.Snapshot;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.consumer.ConsumerManager;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.fs.FileIO;
import org.apache.paimon.fs.Path;
import org.apache.paimon.jdbc.JdbcCatalogLockContext;
import org.apache.paimon.options.Options;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.tag.Tag;
import org.apache.paimon.utils.FileStorePathFactory;
import org.apache.paimon.utils.SerializationUtils;
import org.apache.paimon.utils.SnapshotManager;

/**
 * Python's calls to Paimon's library. Answers are JSON; compiled by Janino, so there are no lambdas and no
 * generics.
 */
public class PaimonBridge {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Never cached: every plan reads the newest metadata. */
  public Catalog open(String properties) throws Exception {
    Options options = new Options();
    Map given = (Map) JSON.readValue(properties, Map.class);
    for (Iterator each = given.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry entry = (Map.Entry) each.next();
      options.set((String) entry.getKey(), (String) entry.getValue());
    }
    options.set("cache-enabled", "false");
    return CatalogFactory.createCatalog(CatalogContext.create(options));
  }

  /** Every table of every database: [[database, table], ...]. */
  public String tables(Catalog catalog) throws Exception {
    List found = new ArrayList();
    for (Iterator databases = catalog.listDatabases().iterator(); databases.hasNext(); ) {
      String database = (String) databases.next();
      List names;
      try {
        names = catalog.listTables(database);
      } catch (Catalog.DatabaseNotExistException gone) {
        continue;
      }
      for (Iterator each = names.iterator(); each.hasNext(); ) {
        List row = new ArrayList();
        row.add(database);
        row.add(each.next());
        found.add(row);
      }
    }
    return JSON.writeValueAsString(found);
  }

  /** The table as the catalog has it now; null for an entry without files of its own, such as a view. */
  public FileStoreTable load(Catalog catalog, String database, String name) throws Exception {
    Table table = catalog.getTable(Identifier.create(database, name));
    return table instanceof FileStoreTable ? (FileStoreTable) table : null;
  }

  /** Must be called after a commit: the lock of a JDBC catalog opens a connection pool for each table object and never closes it. */
  public void release(FileStoreTable table) {
    Object lock = table.catalogEnvironment().lockContext();
    if (table.catalogEnvironment().lockFactory() != null && lock instanceof JdbcCatalogLockContext) {
      try {
        ((JdbcCatalogLockContext) lock).connections().close();
      } catch (RuntimeException gone) {
        // The database became unreachable, and its connections are gone. The commit has ended in either case.
        return;
      }
    }
  }

  /** The table's location and schema; snapshots are read from its files. */
  public String describe(FileStoreTable table) throws Exception {
    Map found = new HashMap();
    found.put("location", table.location().toString());
    found.put("options", table.options());
    found.put("schema", JSON.readValue(table.schema().toString(), Map.class));
    found.put("decoupled", Boolean.valueOf(table.coreOptions().changelogLifecycleDecoupled()));
    CoreOptions options = table.coreOptions();
    Map changelogs = new HashMap();
    changelogs.put("produced", Boolean.valueOf(options.changelogProducer() != CoreOptions.ChangelogProducer.NONE));
    changelogs.put("millis", Long.valueOf(options.changelogTimeRetain().toMillis()));
    changelogs.put("at_least", Integer.valueOf(options.changelogNumRetainMin()));
    changelogs.put("at_most", Integer.valueOf(options.changelogNumRetainMax()));
    changelogs.put("at_once", Integer.valueOf(options.snapshotExpireLimit()));
    found.put("changelogs", changelogs);
    found.put("index_beside_data", Boolean.valueOf(table.coreOptions().indexFileInDataFileDir()));
    return JSON.writeValueAsString(found);
  }

  /** The folder of each partition (as base64 of its bytes) below the table's own folder, without a bucket. */
  public String partitionPaths(FileStoreTable table, String partitions) throws Exception {
    FileStorePathFactory factory = table.store().pathFactory();
    List wanted = (List) JSON.readValue(partitions, List.class);
    List found = new ArrayList();
    for (Iterator each = wanted.iterator(); each.hasNext(); ) {
      BinaryRow row = SerializationUtils.deserializeBinaryRow(Base64.getDecoder().decode((String) each.next()));
      String bucket = factory.relativeBucketPath(row, 0).toString();
      found.add(bucket.substring(0, bucket.length() - "bucket-0".length()));
    }
    return JSON.writeValueAsString(found);
  }

  /**
   * Drops snapshots of main ([[id, its delta manifest list], ...], oldest first) and returns the new earliest
   * one. No other file is changed. A snapshot that is already gone is skipped: another tool dropped it. Stops,
   * with a reason, if a snapshot is not the planned one, is the newest, or has a consumer: other tools may roll
   * back or begin to read.
   */
  public String dropSnapshots(FileStoreTable table, String planned, boolean decoupled) throws Exception {
    List wanted = (List) JSON.readValue(planned, List.class);
    FileIO files = table.fileIO();
    SnapshotManager snapshots = table.snapshotManager();
    ConsumerManager consumers = new ConsumerManager(files, table.location(), "main");
    long next = -1;
    for (Iterator each = wanted.iterator(); each.hasNext(); ) {
      List told = (List) each.next();
      long id = ((Number) told.get(0)).longValue();
      Path path = snapshots.snapshotPath(id);
      if (!files.exists(path)) {
        continue;
      }
      Snapshot found = Snapshot.fromJson(files.readFileUtf8(path));
      if (!found.deltaManifestList().equals(told.get(1))) {
        return "snapshot " + id + " was replaced by another one: the table was rolled back";
      }
      if (!files.exists(snapshots.snapshotPath(id + 1))) {
        return "snapshot " + id + " is the newest now: the table was rolled back";
      }
      OptionalLong read = consumers.minNextSnapshot();
      if (read.isPresent() && read.getAsLong() <= id) {
        return "a consumer reads snapshot " + read.getAsLong() + " next";
      }
      if (decoupled) {
        Changelog changelog = new Changelog(found);
        table.changelogManager().commitChangelog(changelog, id);
        table.changelogManager().commitLongLivedChangelogLatestHint(id);
      }
      files.delete(path, false);
      if (files.exists(path)) {
        throw new IOException("snapshot " + id + " could not be deleted");
      }
      next = id + 1;
    }
    if (next >= 0) {
      snapshots.commitEarliestHint(next);
    }
    return "";
  }

  /**
   * Drops changelogs of main ([[id, its delta manifest list], ...], oldest first) that outlived their
   * snapshots, and returns the new earliest one. No other file is changed. Stops, with a reason, if a changelog
   * is not the planned one, or a consumer reads it.
   */
  public String dropChangelogs(FileStoreTable table, String planned, long earliest) throws Exception {
    List wanted = (List) JSON.readValue(planned, List.class);
    FileIO files = table.fileIO();
    ConsumerManager consumers = new ConsumerManager(files, table.location(), "main");
    for (Iterator each = wanted.iterator(); each.hasNext(); ) {
      List told = (List) each.next();
      long id = ((Number) told.get(0)).longValue();
      Path path = table.changelogManager().longLivedChangelogPath(id);
      if (!files.exists(path)) {
        continue;
      }
      if (!Changelog.fromJson(files.readFileUtf8(path)).deltaManifestList().equals(told.get(1))) {
        return "changelog " + id + " was replaced by another one: the table was rolled back";
      }
      OptionalLong read = consumers.minNextSnapshot();
      if (read.isPresent() && read.getAsLong() <= id) {
        return "a consumer reads changelog " + read.getAsLong() + " next";
      }
      files.delete(path, false);
      if (files.exists(path)) {
        throw new IOException("changelog " + id + " could not be deleted");
      }
    }
    table.changelogManager().commitLongLivedChangelogEarliestHint(earliest);
    return "";
  }

  /** Creates a tag that keeps the snapshot for this long, or forever if the value is negative. */
  public void createTag(FileStoreTable table, String name, long snapshot, long retainedMillis) {
    // The table's own method cannot create a tag without an end: it would use `tag.default-time-retained`.
    Duration retained = retainedMillis < 0 ? null : Duration.ofMillis(retainedMillis);
    Snapshot found = table.snapshotManager().snapshot(snapshot);
    table.tagManager().createTag(found, name, retained, table.store().createTagCallbacks(table), false);
  }

  public boolean hasSnapshot(FileStoreTable table, long snapshot) throws Exception {
    return table.fileIO().exists(table.snapshotManager().snapshotPath(snapshot));
  }

  /** Keeps a tag's snapshot and sets a new end. */
  public void retainTag(FileStoreTable table, String name, long retainedMillis) {
    Snapshot snapshot = table.tagManager().getOrThrow(name).trimToSnapshot();
    Duration retained = retainedMillis < 0 ? null : Duration.ofMillis(retainedMillis);
    table.tagManager().replaceTag(snapshot, name, retained, Collections.emptyList());
  }

  /**
   * Deletes only the tag's own file: Paimon's own method deletes data at once, which branches may still need.
   * False if it is no longer the judged tag: it names another snapshot, or has another term (if a term is
   * given).
   */
  public boolean dropTag(FileStoreTable table, String name, long snapshot, String term) throws Exception {
    Path path = table.tagManager().tagPath(name);
    if (!table.fileIO().exists(path)) {
      return true;
    }
    Tag found = Tag.fromPath(table.fileIO(), path);
    if (found.id() != snapshot || (term != null && !term(found).equals(term))) {
      return false;
    }
    table.fileIO().delete(path, false);
    if (table.fileIO().exists(path)) {
      throw new IOException("tag " + name + " could not be deleted");
    }
    return true;
  }

  private static String term(Tag tag) {
    Duration retained = tag.getTagTimeRetained();
    return retained == null ? "" : String.valueOf(retained.toMillis());
  }
}
